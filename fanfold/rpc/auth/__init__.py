"""Who calls, and whether they may: what every service asks of a call before anything else (C40)."""
