"""JSON Schemas of the objects that pgle prints, made from their types.

A type is a dataclass, or a struct of msgspec. `pgle.report.text.plain` says how its fields become
JSON. The comment of a field is its description, and the end of its name says the unit.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from pgle.next import Next, Sentence
from pgle.report import (
    advise,
    analyze,
    compare,
    confirm,
    conversions,
    flags,
    history,
    predict,
    profiles,
    ranks,
    rehearse,
    releases,
    scale,
    stages,
    start,
    text,
    traces,
    tune,
    verify,
)
from pgle.report.page.value import SCHEMA, Page

Schema = dict[str, Any]

DOCUMENTS: Mapping[str, tuple[type, ...]] = {
    "pgle.advise/1": (advise.AdviseDocument,),
    "pgle.analyze/1": (analyze.AnalyzeDocument,),
    "pgle.auto/1": (stages.AutoDocument,),
    "pgle.baseline/1": (stages.StageDocument,),
    "pgle.carry/1": (conversions.CarryDocument,),
    "pgle.compare/1": (compare.CompareDocument,),
    "pgle.complete/1": (conversions.CompleteDocument,),
    "pgle.confirm/1": (confirm.ConfirmDocument,),
    "pgle.convert/1": (conversions.ConvertDocument,),
    "pgle.diff/1": (profiles.DiffDocument,),
    "pgle.doctor/1": (start.DoctorDocument,),
    "pgle.error/1": (text.ErrorDocument,),
    "pgle.flags/1": (
        flags.ListDocument,
        flags.ExplainDocument,
        flags.LintDocument,
        flags.ScriptsLintDocument,
        flags.PresetsDocument,
        flags.PresetDocument,
    ),
    "pgle.history/1": (history.HistoryDocument,),
    "pgle.init/1": (start.StartersDocument, start.WrittenStarter),
    "pgle.perf/1": (stages.StageDocument,),
    "pgle.predict/1": (predict.PredictDocument,),
    "pgle.profile/1": (stages.StageDocument,),
    "pgle.proof/1": (start.ProofDocument,),
    "pgle.ranks/1": (ranks.RanksDocument,),
    "pgle.rehearse/1": (rehearse.RehearseDocument,),
    "pgle.releases/1": (releases.ReleasesDocument,),
    "pgle.run/1": (stages.RunDocument,),
    "pgle.scale/1": (scale.ScaleDocument,),
    "pgle.show/1": (profiles.ProfileDocument, traces.TraceDocument),
    "pgle.tune/1": (tune.TuneDocument,),
    "pgle.verify/1": (verify.VerifyDocument,),
}
"""The types of each object; several if it has several forms."""

WITHOUT_NEXT = (text.ErrorDocument, flags.PresetDocument, Page)
"""Types that are no answer with a page; a page has its own."""

NEXT: Schema = {
    "type": "string",
    "description": "commands that lead on, or the end in words; a line each",
}

UNITS = {
    "_us": "microseconds",
    "_ns": "nanoseconds",
    "_gb_s": "GB/s",
    "_s": "seconds",
    "_bytes": "bytes",
    "_mib": "MiB",
    "_share": "0 to 1",
    "_coverage": "0 to 1",
    "_tflops": "TFLOP/s",
}
"""By the end of a name; the first that fits counts."""

OF_CLASSES: tuple[tuple[tuple[type, ...], Schema], ...] = (
    ((bool, np.bool_), {"type": "boolean"}),
    ((int, np.integer), {"type": "integer"}),
    # a number that is not finite is null
    ((float, np.floating), {"type": ["null", "number"]}),
    ((str, PathLike, Next, Sentence), {"type": "string"}),
    ((NoneType,), {"type": "null"}),
    ((np.ndarray, list, tuple), {"type": "array"}),
    ((Mapping,), {"type": "object"}),
    ((object,), {}),
)
"""The first row with a base of a class counts."""


def schema_of(name: str) -> Schema:
    """The schema of an object such as ``pgle.verify/1``, as its file has it."""
    found = SchemaMaker()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name}
    if name == SCHEMA:
        forms = [_object({"page": found.of(Page)})]
    else:
        forms = [found.of_fields(kind) for kind in DOCUMENTS[name]]
    for form, kind in zip(forms, DOCUMENTS.get(name, (Page,)), strict=True):
        form["properties"] = {"schema": {"const": name}, **form["properties"]}
        form["required"].insert(0, "schema")
        if kind not in WITHOUT_NEXT:
            form["properties"]["next"] = NEXT
            form["required"].append("next")
    whole = forms[0] if len(forms) == 1 else {"type": "object", "anyOf": forms}
    definitions = dict(sorted(found.definitions.items()))
    return {**head, **whole, **({"$defs": definitions} if definitions else {})}


class SchemaMaker:
    """Schemas of types; those of classes with fields are collected by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._classes: dict[str, type] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type."""
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(args[0])
        if origin in (Union, UnionType):
            return _either([self.of(item) for item in args])
        if origin is Literal:
            return _one_of(args)
        if isinstance(origin, type):
            return self._of_generic(origin, args)
        if not isinstance(kind, type):
            return self.of(kind.__supertype__) if hasattr(kind, "__supertype__") else {}
        return self._of_class(kind)

    def _of_generic(self, origin: type, args: tuple[Any, ...]) -> Schema:
        if issubclass(origin, Mapping):
            return self._of_mapping(*args)
        if issubclass(origin, tuple) and args[-1:] != (...,):
            return _places([self.of(item) for item in args])
        if issubclass(origin, Collection) and origin is not np.ndarray:
            return {"type": "array", "items": self.of(args[0])}
        return self._of_class(origin)

    def _of_mapping(self, key: Any, value: Any) -> Schema:
        if get_origin(key) is Literal:
            return _object({name: self.of(value) for name in get_args(key)})
        return {"type": "object", "additionalProperties": self.of(value)}

    def _of_class(self, kind: type) -> Schema:
        if issubclass(kind, Enum):
            return _one_of([item.value for item in kind])
        if hasattr(kind, "_fields"):  # a named tuple is an array in JSON
            return _places([self.of(item) for item in get_type_hints(kind).values()])
        has_fields = is_dataclass(kind) or issubclass(kind, msgspec.Struct)
        if has_fields and not issubclass(kind, Next | Sentence):
            return self._reference(kind)
        rows = (found for bases, found in OF_CLASSES if issubclass(kind, bases))
        return dict(next(rows))

    def _reference(self, kind: type) -> Schema:
        name = kind.__name__
        if self._classes.setdefault(name, kind) is not kind:
            raise ValueError(f"two types in one object have the name {name}")
        if name not in self.definitions:
            self.definitions[name] = {}  # so that a type may hold itself
            self.definitions[name] = self._defined(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _defined(self, kind: type) -> Schema:
        """The object of a class, described by its docstring."""
        paragraph, _, _ = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
        about = " ".join(paragraph.split())
        words = {} if about.startswith(kind.__name__) else {"description": about}
        return {**words, **self.of_fields(kind)}

    def of_fields(self, kind: type) -> Schema:
        """The object that a class with fields is in JSON."""
        found = _object({})
        for item in _fields_of(kind):
            if not item.is_flat:
                schema = self.of(item.kind)
                found["properties"][item.name] = described(
                    item.name, item.about, schema
                )
                found["required"].append(item.name)
                continue
            inner = [each for each in _options(item.kind) if each is not NoneType]
            is_always = len(inner) == len(_options(item.kind))
            part = self._flat(inner[0])
            found["properties"] |= part["properties"]
            found["required"] += part["required"] if is_always else []
        return found

    def _flat(self, kind: Any) -> Schema:
        return self.of_fields(kind) if isinstance(kind, type) else self.of(kind)


@dataclass(frozen=True)
class TypedField:
    """A field of a class."""

    name: str  # in JSON
    kind: Any  # its type
    about: str  # its comment
    is_flat: bool  # its own fields take its place


def _fields_of(kind: type) -> Iterator[TypedField]:
    names = _names_for_checks(kind)
    hints = get_type_hints(kind, names, names, include_extras=True)
    about = _comments(kind)
    if issubclass(kind, msgspec.Struct):
        config = kind.__struct_config__
        if config.tag is not None:
            tag = Literal[config.tag]  # type: ignore[valid-type]
            yield TypedField(str(config.tag_field), tag, "", is_flat=False)
        for name in kind.__struct_fields__:
            yield TypedField(name, hints[name], about.get(name, ""), is_flat=False)
        return
    for item in fields(kind):  # type: ignore[arg-type]
        is_flat = "flat" in item.metadata
        yield TypedField(item.name, hints[item.name], about.get(item.name, ""), is_flat)


def described(name: str, about: str, schema: Schema) -> Schema:
    """A schema with what its field's comment says, and the unit of its numbers."""
    unit = ""
    if "number" in str(schema) or "integer" in str(schema):
        ends = (unit for end, unit in UNITS.items() if f"_{name}".endswith(end))
        unit = next(ends, "")
    words = f"{about} ({unit})" if about and unit else about or unit
    return {**schema, "description": words} if words else schema


def _options(kind: Any) -> tuple[Any, ...]:
    is_union = get_origin(kind) in (Union, UnionType)
    return get_args(kind) if is_union else (kind,)


def _object(properties: Schema) -> Schema:
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names}


def _places(items: list[Schema]) -> Schema:
    count = {"minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "prefixItems": items, **count}


def _one_of(values: Collection[Any]) -> Schema:
    """One of some values, with the type that they have in common."""
    kinds = {type(value) for value in values if not isinstance(value, str)} or {str}
    kind = {str: "string", int: "integer", bool: "boolean"}[kinds.pop()]
    return {"type": kind, "enum": list(values)}


def _either(options: list[Schema]) -> Schema:
    """One of several schemas; types without further rules become one list."""
    if any(not option for option in options):
        return {}
    plain = [option for option in options if option.keys() == {"type"}]
    others = [option for option in options if option.keys() != {"type"}]
    kinds: set[str] = set()
    for option in plain:
        named = option["type"]
        kinds.update([named] if isinstance(named, str) else named)
    names = sorted(kinds)
    together = [{"type": names[0] if len(names) == 1 else names}] if names else []
    found = [*others, *together]
    return found[0] if len(found) == 1 else {"anyOf": found}


@cache
def _names_for_checks(kind: type) -> dict[str, Any]:
    """The names of a class's module, with those that it imports for type checkers alone."""
    module = sys.modules[kind.__module__]
    names = dict(vars(module))
    for node in ast.walk(_tree(str(module.__file__))):
        if not isinstance(node, ast.If) or "TYPE_CHECKING" not in ast.unparse(
            node.test
        ):
            continue
        for line in node.body:
            is_own = isinstance(line, ast.ImportFrom) and line.module != "_typeshed"
            if is_own:
                exec(ast.unparse(line), names)
    return names


def _comments(kind: type) -> dict[str, str]:
    """The comment of each field of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        path = getattr(sys.modules[base.__module__], "__file__", None)
        if path is not None and path.endswith(".py"):  # not written in C
            found |= _comments_in(path).get(base.__name__, {})
    return found


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text())


@cache
def _comments_in(path: str) -> dict[str, dict[str, str]]:
    """The comments of fields in a file, by class and field: above the field, or next to it."""
    source = Path(path).read_text()
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        for line in node.body:
            if isinstance(line, ast.AnnAssign):
                first = line.lineno
                while lines[first - 2].lstrip().startswith("#"):
                    first -= 1
                numbers = range(first, (line.end_lineno or line.lineno) + 1)
                words = (comments[number] for number in numbers if number in comments)
                named = found.setdefault(node.name, {})
                named[ast.unparse(line.target)] = " ".join(words)
    return found
