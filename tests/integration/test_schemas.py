"""The JSON Schema files in docs/schemas are what the types give, and real outputs satisfy them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from documents import PRINTED, ROOT, prepare, produce
from schemas import SCHEMAS, violations
from typed_schemas import DOCUMENTS, SCHEMA, SchemaMaker, schema_of

from pgle.report import text

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


@pytest.mark.parametrize(
    "words", [words for some in PRINTED.values() for words in some], ids=" ".join
)
def test_an_output_satisfies_its_schema(words: list[str], folder: Path) -> None:
    assert violations(produce(words, folder)) == []


@pytest.mark.parametrize("name", [*DOCUMENTS, SCHEMA])
def test_a_file_is_what_the_types_give(name: str) -> None:
    found = json.loads((SCHEMAS / f"{name.replace('/', '-')}.json").read_text())
    assert found == schema_of(name), "run: python scripts/record_schemas.py"


@dataclass(frozen=True)
class Inner:
    # a time; null if nobody
    # measured it
    time_us: float | None
    ends: tuple[int, str]  # first and last


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(metadata=text.FLAT)
    more: Mapping[Literal["from"], str] | None = field(metadata=text.FLAT)
    others: Mapping[str, Inner]


def test_the_fields_of_a_flat_field_take_its_place() -> None:
    value = Outer("a", Inner(1.0, (1, "b")), None, {"c": Inner(None, (2, "d"))})
    others = {"c": {"time_us": None, "ends": [2, "d"]}}
    assert text.plain(value) == {
        "name": "a",
        "time_us": 1.0,
        "ends": [1, "b"],
        "others": others,
    }


def test_a_schema_says_what_a_type_says() -> None:
    found = SchemaMaker().of_fields(Outer)
    assert found["required"] == ["name", "time_us", "ends", "others"]
    assert found["properties"]["from"] == {"type": "string"}
    assert found["properties"]["time_us"] == {
        "type": ["null", "number"],
        "description": "a time; null if nobody measured it (microseconds)",
    }
    assert found["properties"]["ends"] == {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
        "description": "first and last",
    }
    inner = {"$ref": "#/$defs/Inner"}
    others = {"type": "object", "additionalProperties": inner}
    assert found["properties"]["others"] == others


def test_every_printed_object_has_a_schema() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "pgle").rglob("*.py"))
    named = set(re.findall(r'"pgle\.([a-z-]+)/\d"', code)) - NOT_PRINTED
    typed = {name.removeprefix("pgle.")[:-2] for name in (*DOCUMENTS, SCHEMA)}
    assert named <= typed
    assert len(list(SCHEMAS.glob("*.json"))) == len(typed)


def test_a_rate_is_not_in_seconds() -> None:
    text = (SCHEMAS / "pgle.analyze-1.json").read_text()
    rates = re.findall(r'"[a-z_]+_gb_s": \{[^}]*"description": "([^"]*)"', text)
    assert ["GB/s" in rate and "seconds" not in rate for rate in rates] == [True] * 2


def test_a_schema_refuses_what_is_not_its_object() -> None:
    for path in SCHEMAS.glob("*.json"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {"schema": "pgle.other/1"}, json.loads(path.read_text())
            )
