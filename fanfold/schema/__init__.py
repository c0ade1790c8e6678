"""JSON Schema 2020-12 for schemas and values that nobody vouches for (C20).

`SchemaValidator` (in `validator`) is what services use. It never looks into a schema itself: a worker process with a
memory limit and a deadline does, so whatever a schema does to its reader ends with that process.

    limits      what a schema and a value may cost
    validator   the public face: what was checked is remembered, faults are put into words
    structured  from what an agent gave to a validated value
    candidates  where in a text there may be a value
    encoding    Python values to JSON text, or why that is impossible
    dispatch    the queue before the worker: owners take turns, a dead worker is replaced
    process     the parent's end of one worker process
    worker      the worker's main program
    survey      the worker's checks of a schema
    metaschema  what a schema has to look like
    own         what is wrong with a schema of the service's own files, without a worker
    dialect     the worker's validation: jsonschema with RE2 instead of `re`
    frames, words   what both ends share: the framing, and how places are written
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fanfold.schema.limits import SchemaLimits as SchemaLimits
    from fanfold.schema.validator import SchemaValidator as SchemaValidator

_HOMES = {"SchemaLimits": "fanfold.schema.limits", "SchemaValidator": "fanfold.schema.validator"}


def __getattr__(name: str) -> object:
    # Not imported at once because the worker lives in this package too and should not load asyncio to start.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES[name]), name)
