"""Owns the processes of a node: whatever was started is gone when it should be, also when its owner was killed.

    supervisor      first process of the node, ancestor of all others
    ├── runtime     speaks gRPC, runs no agent code (embedded, it is the supervisor's parent instead)
    └── launcher    one a process tree; kills the rest of its tree when the first process has ended
        └── agent   a command or a worker, and whatever it starts

The processes are children of subreapers, so nothing gets away by setsid or by forking twice. A launcher dies when the
supervisor does, its tree when the launcher does, and everything when the runtime does (F1, F17, F24).
"""
