"""Write docs/schemas/*.json, the JSON Schema of every object that pgle prints, from their types.

    python scripts/record_schemas.py [NAME ...]

A name is such as ``verify``; without names, all are written. `tests/helpers/typed_schemas.py` lists
the types. A field's description is the comment next to it. A test says that the files are what the
types give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from typed_schemas import DOCUMENTS, schema_of  # noqa: E402

from pgle.report.page.value import SCHEMA  # noqa: E402


def text_of(name: str) -> str:
    """The file of an object such as ``pgle.verify/1``."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    wanted = sys.argv[1:]
    for name in (*DOCUMENTS, SCHEMA):
        short = name.removeprefix("pgle.").partition("/")[0]
        if not wanted or short in wanted:
            path = ROOT / "docs" / "schemas" / f"{name.replace('/', '-')}.json"
            path.write_text(text_of(name))
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
