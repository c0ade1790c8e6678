"""What the registry keeps of jobs: the protocol, in memory and in a database."""
