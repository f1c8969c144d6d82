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
    """That of an object such as ``pgle.verify/1``."""
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(
        json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    )


def violations(found: dict[str, Any]) -> list[str]:
    """Where an object does not satisfy its schema; a line each."""
    return [
        f"{found['schema']} {re.sub('[0-9]+', 'N', '/'.join(map(str, error.absolute_path)))}: {error.message[:200]}"
        for error in validator(found["schema"]).iter_errors(found)
    ]
