"""Workflow scripts: the sandboxed engine that runs them, and the policy that decides what they may have done."""
