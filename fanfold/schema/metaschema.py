"""The metaschema of 2020-12, its vocabularies merged into one schema.

The official one refers from the whole to seven vocabularies and from each of them dynamically back to the whole, which
costs several times as much for the same verdicts. The merged one is made of the official documents. It differs in one
point: `$schema` can only be 2020-12.
"""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from fanfold.schema.dialect import Dialect, registry_of

_BASE = "https://json-schema.org/draft/2020-12/"
_ID = f"{_BASE}schema"


def _merged() -> Any:
    whole = REGISTRY.contents(_ID)
    vocabularies = [REGISTRY.contents(_BASE + part["$ref"]) for part in whole["allOf"]]
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for part in (*vocabularies, whole):
        properties |= part["properties"]
        definitions |= part.get("$defs", {})
    properties["$schema"] = {"enum": [_ID, f"{_ID}#"]}
    text = json.dumps({"type": whole["type"], "properties": properties, "$defs": definitions})
    text = text.replace('"$dynamicRef": "#meta"', '"$ref": "#"')
    return json.loads(re.sub(r'"\$ref": "meta/\w+#', '"$ref": "#', text))


_document = _merged()
METASCHEMA = Dialect(_document, registry=registry_of(_document))
