"""Real outputs satisfy the JSON Schema files in docs/schemas; those are made from other outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from documents import CHEAP, ROOT, prepare, produce
from schemas import SCHEMAS, violations

jsonschema = pytest.importorskip("jsonschema")

pytestmark = pytest.mark.usefixtures("read_once")

NOT_PRINTED = {"abba", "manifest", "rows", "search", "snapshot"}
"""Files that pgle keeps for itself; manifest.json is in docs/run-directory.md, a snapshot in the guide
on CI.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("documents")
    prepare(place)
    return place


@pytest.mark.parametrize("name", CHEAP)
def test_an_output_satisfies_its_schema(name: str, folder: Path) -> None:
    assert violations(produce(CHEAP[name][-1], folder)) == []


def test_every_printed_object_has_a_schema() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "pgle").rglob("*.py"))
    named = set(re.findall(r'"pgle\.([a-z-]+)/\d"', code)) - NOT_PRINTED
    assert named <= {
        path.name.removeprefix("pgle.")[: -len("-1.json")]
        for path in SCHEMAS.glob("*.json")
    }


def test_a_rate_is_not_in_seconds() -> None:
    text = (SCHEMAS / "pgle.analyze-1.json").read_text()
    rates = re.findall(r'"[a-z_]+_gb_s": \{[^}]*"description": "([^"]*)"', text)
    assert rates == ["GB/s"] * 2


def test_a_schema_refuses_what_is_not_its_object() -> None:
    for path in SCHEMAS.glob("*.json"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {"schema": "pgle.other/1"}, json.loads(path.read_text())
            )
