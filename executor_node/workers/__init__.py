"""Worker processes, which run Python agents: one for each step, or one that many steps share.

Runtime and worker talk over a socket: `frames` carry `messages`. The runtime's side is `channel`, `process` and `pool`.
The worker's side is `main`, `alone`, `shared`, `calls`, `context` and `outgoing`. It stays light, because every worker
is forked from a process that holds it.
"""
