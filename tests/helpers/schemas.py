"""The JSON Schema files of docs/schemas, and what an object has that its schema does not allow."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


@functools.cache
def validator(name: str) -> Any:
    """That of an object such as ``pgle.verify/1``; None where it has no file."""
    jsonschema = pytest.importorskip("jsonschema")
    path = SCHEMAS / f"{name.replace('/', '-')}.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text())) if path.exists() else None


def violations(found: dict[str, Any]) -> list[str]:
    """Where an object does not satisfy its schema; a line each."""
    known = validator(found["schema"])
    if known is None:
        return [f"{found['schema']} has no file in docs/schemas"]
    return [
        f"{found['schema']} {re.sub('[0-9]+', 'N', '/'.join(map(str, error.absolute_path)))}: {error.message[:200]}"
        for error in known.iter_errors(found)
    ]
