"""How steps are arranged. Written against `AgentExecutor` alone (C8): importable and usable without any service."""
