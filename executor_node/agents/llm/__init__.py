"""Agents of kind llm: a language model with tools, through pydantic-ai.

The node's runtime has `agents` (which starts steps in workers), `gates` (which hold back calls when a provider says so)
and `assignment` (what a worker is told). A worker enters at `step`, which alone is light; it imports `conversation`,
and with it pydantic-ai, when its first step comes.
"""
