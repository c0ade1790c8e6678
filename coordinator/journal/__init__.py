"""Where runs are kept so that no coordinator's death loses them: the protocol, and what implements it."""
