"""Worker processes, which run Python agents: one for each step, or one that many steps share.

Runtime and worker talk over a socket: `frames` carry `messages`. The worker's side is `main`, `alone`, `shared`, `calls`,
`context` and `outgoing`, and stays light, because every worker is forked from a process that holds it; `channel`, `process`
and `pool` are the runtime's side.
"""
