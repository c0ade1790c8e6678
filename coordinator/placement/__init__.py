"""Where steps go: the nodes that are known, which of them takes a step, and the executor that hides all that."""
