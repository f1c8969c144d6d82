"""Makes docs/schemas/*.json, the JSON Schema of every object that pgle prints, from real outputs.

    python scripts/record_schemas.py [NAME ...]

The outputs are those of tests/helpers/documents.py, but for the last of each command without a
compilation. Tests hold that one, and every object that any test prints, against the schema. A field
is required where every sample has it; a number may be null (not finite), and so may what no sample
has; objects may gain fields.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from documents import CHEAP, COMPILED, prepare, produce  # noqa: E402

from pgle.xla.log.verdict import ProfileUse  # noqa: E402

UNITS = {
    "_us": "microseconds", "_ns": "nanoseconds", "_gb_s": "GB/s", "_s": "seconds", "_bytes": "bytes", "_mib": "MiB",
    "_share": "0 to 1", "_coverage": "0 to 1", "_tflops": "TFLOP/s",
}  # fmt: skip
BY_NAME = {
    "memory_bytes",
    "wasted_cycles",
    "kinds",
    "other_modules",
    "basis",
    "versions",
    "before",
    "after",
    "facts",
    "settings_by_name",
    "presets",
    "starters",
    "recompiled",
    "by_kind",
    "products",
    "control_products",
    "kernels",
}
"""Objects whose keys are data: names of modules, packages."""


FOUND = "provenance"  # of a profile, out of a file beside it
NULLABLE = {
    "schedule",
    "before",
    "after",
    "fits",
    "control",
    "timed",
    "expected",
    "order",
}
"""What may be absent though every sample has it: no schedule of a loop-free module, one side of a
difference, no memory report of jax 0.8.
"""


def merged(samples: list[Any], name: str = "") -> dict[str, Any]:
    """The schema that all samples of one place satisfy."""
    kinds = {kind(sample) for sample in samples}
    unit = next(
        (unit for ending, unit in UNITS.items() if f"_{name}".endswith(ending)), ""
    )
    if kinds <= {
        "null"
    }:  # no sample has it: it may be anything, but for what its name says
        return {"type": ["null", "number"], "description": unit} if unit else {}
    if kinds & {"number", "integer"}:
        whole = "number" not in kinds and unit in ("", "bytes", "nanoseconds")
        kinds = kinds - {"number", "integer"} | {
            "integer" if whole else "number",
            "null",
        }
    schema: dict[str, Any] = {"type": sorted(kinds) if len(kinds) > 1 else min(kinds)}
    if unit and {"number", "integer"} & kinds:
        schema["description"] = unit
    if samples and set(map(str, samples)) <= set(ProfileUse):
        schema["description"] = f"one of {', '.join(ProfileUse)}"
    if name in NULLABLE:
        kinds |= {"null"}
        schema["type"] = sorted(kinds)
    objects = [sample for sample in samples if isinstance(sample, dict)]
    if objects:
        schema |= of_objects(objects, name)
        schema = as_found(schema) if name == FOUND else schema
    items = [item for sample in samples if isinstance(sample, list) for item in sample]
    if items:
        schema["items"] = merged(items, name)
    return schema


def of_objects(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Properties, or for objects by name the schema of their values."""
    keys = list(dict.fromkeys(key for item in objects for key in item))
    if name in BY_NAME or not all(
        key.isidentifier() or key.replace("-", "_").isidentifier() for key in keys
    ):
        values = [value for item in objects for value in item.values()]
        return {"additionalProperties": merged(values) if values else {}}
    properties = {
        key: merged([item[key] for item in objects if key in item], key) for key in keys
    }
    return {
        "properties": properties,
        "required": [key for key in keys if all(key in item for item in objects)],
    }


def as_found(schema: Any, name: str = "") -> Any:
    """What a file may hold that another pgle wrote: fields have their types, and none is
    required.
    """
    if isinstance(schema, list):
        return [as_found(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: as_found(value, key) for key, value in schema.items() if key != "required"
    }
    return (
        {"type": "object"} if name == FOUND else kept
    )  # that of an input, as deep as profiles were merged


def kind(value: Any) -> str:
    """The JSON type of a value."""
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return "null" if value is None else names[type(value)]


def main() -> None:
    """Write the files."""
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for title, commands in {**CHEAP, **COMPILED}.items():
            if wanted and title not in wanted:
                continue
            shown = commands[:-1] if len(commands) > 1 and title in CHEAP else commands
            samples = [produce(words, folder) for words in shown]
            samples = [
                sample
                for sample in samples
                if sample["schema"].startswith(f"pgle.{title}/")
            ] or samples
            if title != "error" and any(
                sample["schema"] == "pgle.error/1" for sample in samples
            ):
                raise SystemExit(f"{title}: {samples[0]['error']}")
            schema = merged(samples)
            version = samples[0]["schema"]
            schema["properties"]["schema"] = {"const": version}
            head = {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": version,
            }
            path = ROOT / "docs" / "schemas" / f"{version.replace('/', '-')}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                json.dumps({**head, **schema}, indent=1, ensure_ascii=False) + "\n"
            )
            print(path.relative_to(ROOT), len(samples))


if __name__ == "__main__":
    main()
