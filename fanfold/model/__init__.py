"""The types that callers, services and workers share. Plain frozen dataclasses; `validation` is the edge."""
