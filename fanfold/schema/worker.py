"""The worker process: reads schemas and values, and says what is wrong with them.

It trusts neither. Its memory is limited, it dies with its parent, and the parent kills it at the deadline, so the code
here only has to be right, not safe. It keeps the schemas it met lately.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from fanfold.schema.dialect import Dialect, faults, registry_of
from fanfold.schema.drafts import in_2020_12
from fanfold.schema.frames import frame, read_frame
from fanfold.schema.limits import SchemaLimits
from fanfold.schema.survey import Refused, oversize, survey

_PR_SET_PDEATHSIG = 1
_SCHEMAS_KEPT = 256
# Enough for the depths that the limits allow, and far from the end of an 8 MiB stack (20,000 would use all of it).
_RECURSION_LIMIT = 5000


def main(parent: str, limits: str) -> None:
    """Serve until the parent closes the pipe. `limits` are the fields of `SchemaLimits` as a JSON object."""
    bounds = SchemaLimits(**json.loads(limits))
    _restrict(int(parent), bounds.worker_memory_bytes)
    judge = _Judge(bounds)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(frame(b"null"))
    answers.flush()
    while (schema := read_frame(requests)) is not None and (value := read_frame(requests)) is not None:
        answers.write(frame(json.dumps(judge.fault(schema, value)).encode()))
        answers.flush()


def _restrict(parent: int, memory_bytes: int) -> None:
    sys.setrecursionlimit(_RECURSION_LIMIT)
    _lower(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        _lower(resource.RLIMIT_AS, memory_bytes)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent ended before the worker began")


def _lower(kind: int, bound: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(kind, (bound, bound))


class _Judge:
    """Answers requests, whatever they hold."""

    def __init__(self, limits: SchemaLimits) -> None:
        self._limits = limits
        self._validator = lru_cache(maxsize=_SCHEMAS_KEPT)(self._compile)

    def fault(self, schema: bytes, value: bytes) -> str | None:
        """What is wrong with the schema or, if a value is given, with the value; None when nothing is."""
        try:
            validator = self._validator(schema)
            return self._fault_of_value(validator, json.loads(value)) if value else None
        except Refused as refusal:
            return str(refusal)
        except RecursionError:
            return "$: nests or refers too deep to be followed"
        except MemoryError:
            # What is left of the memory may not be enough for anybody; a fresh process has it all.
            os._exit(1)
        except Exception as error:
            return f"$: cannot be judged ({type(error).__name__})"

    def _compile(self, schema: bytes) -> Any:
        document = in_2020_12(json.loads(schema))
        survey(document, self._limits)
        return Dialect(document, registry=registry_of(document))

    def _fault_of_value(self, validator: Any, value: Any) -> str | None:
        limits = self._limits
        fault = oversize(value, max_depth=limits.max_value_depth, max_nodes=limits.max_value_nodes)
        return f"$: {fault}" if fault else faults(validator, value)
