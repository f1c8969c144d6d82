"""HLO modules from text, as ``--xla_dump_to`` and `Compiled.as_text` print them, in one pass over the lines.

Text says less than the proto: ids are missing, and jaxlib 0.12 leaves get-tuple-elements out and writes ``%name#1``;
these become instructions called ``name#1``. The grammar follows `xla/hlo/parser/hlo_parser.cc`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from pgle.errors import UserError
from pgle.xla.hlo.check import checked
from pgle.xla.hlo.module import Computation, Instruction, Module
from pgle.xla.hlo.replica_groups import Groups
from pgle.xla.hlo.text_parts import Attributes, ShapeTable, groups_from_text, unescape

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) ?(?:\(.*)?\{$", re.DOTALL)
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")
_BARE_OPERAND = re.compile(r"([\w.\-]+)((?:#\d+)*)(?=, |$)")
_HEADER = {
    "partitions": re.compile(r"num_partitions=(\d+)"),
    "replicas": re.compile(r"replica_count=(\d+)"),
    "fingerprint": re.compile(r'fingerprint_before_lhs="([0-9a-f]+)"'),
}
_FILE = re.compile(r'(\d+) "((?:[^"\\]|\\.)*)"$')
_PLACE = re.compile(r"(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_FRAME = re.compile(r"(\d+) \{file_location_id=(\d+)\b")
_FRONTEND = re.compile(r'frontend_attributes=\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}')
_PAIR = re.compile(r'([\w.\-]+)="((?:[^"\\]|\\.)*)"')
_THREAD = re.compile(r'execution_thread="([^"]*)"')


def module_from_text(data: bytes, source: str, *, program_id: int | None = None) -> Module:
    """A module from HLO text.

    Args:
        data: UTF-8 text that begins with ``HloModule``.
        program_id: where the file name tells; text does not.

    Raises:
        UserError: it is no HLO text, cut short, or what cannot be (`sound`).
    """
    check_begin(data, source)
    parser = _Parser(source)
    line = ""
    try:
        for line in io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace"):  # not all lines at once: they are as much
            parser.feed(line.rstrip("\n"))
    except UserError as error:
        raise UserError(error.what, where=source, remedy="dump it again") from None
    except ValueError:
        raise UserError(f"not HLO text: '{line.strip()[:60]}'", where=source, remedy=_remedy(data)) from None
    return parser.module(program_id)


def check_begin(data: bytes, source: str) -> None:
    """Raise `UserError` where no HLO text begins with these bytes."""
    if not data.lstrip().startswith(b"HloModule "):
        raise UserError("not HLO text (it does not begin with HloModule)", where=source, remedy=_remedy(data))


def _remedy(data: bytes) -> str:
    if b"\0" in data[:4096]:
        return "it looks like a protocol buffer: name it .hlo.pb"
    return "pass an after_optimizations .txt or .hlo.pb of --xla_dump_to"


class _Parser:
    """Lines → computations. State is the computation being read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.header = ""
        self.entry = ""
        self.computations: dict[str, Computation] = {}
        self.fused: set[str] = set()
        self.called: set[str] = set()
        self.shapes = ShapeTable()
        self.groups: dict[str, Groups] = {}
        self.name = ""
        self.root = ""
        self.items: dict[str, Instruction] = {}
        self.files: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.frames: dict[str, str] = {}

    def feed(self, line: str) -> None:
        if not line or line.startswith("//"):
            return
        if not self.name:
            if line.startswith("HloModule "):
                self.header = line
            elif line.endswith("{") and (match := _COMPUTATION.match(line)):
                self.name = match.group(2)
                if match.group(1):
                    self.entry = self.name
            elif line[0].isdigit():
                self._table_row(line)
        elif line[0] == "}":
            self._close(line)
        else:
            match = _INSTRUCTION.match(line)
            if match is not None:
                self._instruction(line, match)

    def _table_row(self, line: str) -> None:
        """A row of the tables of files, functions, places and stack frames, of which the functions come to nothing."""
        if match := _PLACE.match(line):
            self.places[match[1]] = f"{self.files.get(match[2], '')}:{match[3]}"
        elif match := _FRAME.match(line):
            self.frames[match[1]] = self.places.get(match[2], "")
        elif (match := _FILE.match(line)) and match[1] not in self.files:  # the functions follow, from 1 again
            self.files[match[1]] = unescape(match[2])

    def _close(self, line: str) -> None:
        thread = _THREAD.search(line)
        items = tuple(self.items.values())
        if not items:
            raise UserError(f"computation {self.name} has no instruction")
        for item in items:
            for name in (*item.operands, *item.control_predecessors):
                if name not in self.items:
                    raise UserError(f"%{item.name} refers to %{name}, which is not in its computation")
            self.called.update(item.called)
        self.computations[self.name] = Computation(
            self.name, items, self.root or items[-1].name, False, "" if thread is None else thread.group(1)
        )
        self.name, self.root, self.items = "", "", {}

    def _instruction(self, line: str, match: re.Match[str]) -> None:
        is_root, name, shape_text, opcode = match.groups()
        inside, tail = _split_operands(line, match.end())
        operands = () if opcode in ("constant", "parameter") else self._operands(inside)
        if is_root:
            self.root = name
        attributes = Attributes(tail)
        if not attributes.values:  # most instructions of fusions have metadata at most; there are millions
            number = int(inside) if opcode == "parameter" and inside.isdigit() else None
            self.items[name] = Instruction(
                name,
                opcode if "-" not in opcode else self._opcode(opcode, (), operands),
                self.shapes.shape(shape_text),
                self.name,
                operands,
                scheduling_name=attributes.scheduling_name,
                op_name=attributes.op_name,
                replica_groups=self._groups(attributes.replica_groups),
                backend_config=attributes.backend_config,
                parameter_number=number,
                source=attributes.source(self.frames),
                latency_ns=attributes.latency_ns,
            )
            return
        called = attributes.called(opcode)
        opcode = self._opcode(opcode, called, operands)
        if opcode == "fusion":
            self.fused.update(called)
        self.items[name] = Instruction(
            name,
            opcode,
            self.shapes.shape(shape_text),
            self.name,
            operands,
            called,
            attributes.names("control-predecessors"),
            attributes.scheduling_name,
            attributes.op_name,
            attributes.number("channel_id"),
            self._groups(attributes.replica_groups),
            attributes.pairs("source_target_pairs"),
            attributes.text("custom_call_target"),
            attributes.values.get("kind", "") if opcode == "fusion" else "",
            attributes.backend_config,
            attributes.numbers("lhs_contracting_dims") if opcode == "dot" else (),
            attributes.number("index") if opcode == "get-tuple-element" else None,
            int(inside) if opcode == "parameter" and inside.isdigit() else None,
            attributes.values.get("is_host_transfer") == "true",
            attributes.source(self.frames),
            attributes.latency_ns,
        )

    def _opcode(self, opcode: str, called: tuple[str, ...], operands: tuple[str, ...]) -> str:
        """The opcode of the proto: text of some versions prints ``all-gather-start`` for an ``async-start``."""
        base, _, step = opcode.rpartition("-")
        if step not in ("start", "update", "done") or base in ("async", "copy", "send", "recv"):
            return opcode
        start = self.items.get(operands[0]) if operands else None
        if (step == "start" and called and base != "all-reduce") or (start and start.opcode == "async-start"):
            return f"async-{step}"
        return opcode

    def _operands(self, inside: str) -> tuple[str, ...]:
        if not inside:
            return ()
        pattern = _OPERAND if "%" in inside else _BARE_OPERAND
        if "#" not in inside:
            return tuple([name for name, _ in pattern.findall(inside)])
        return tuple([self._element(name, path) if path else name for name, path in pattern.findall(inside)])

    def _element(self, name: str, path: str) -> str:
        """Make the get-tuple-elements that ``name#1`` leaves out."""
        for part in path[1:].split("#"):
            element = f"{name}#{part}"
            if element not in self.items:
                index = int(part)
                elements = self.items[name].shape.elements if name in self.items else ()
                if index >= len(elements):
                    raise UserError(f"%{element} is no element of a tuple")
                self.items[element] = Instruction(
                    element, "get-tuple-element", elements[index], self.name, (name,), tuple_index=index
                )
            name = element
        return name

    def _groups(self, text: str) -> Groups:
        if not text:
            return ()
        if text not in self.groups:
            self.groups[text] = groups_from_text(text)
        return self.groups[text]

    def module(self, program_id: int | None) -> Module:
        if self.name or self.entry not in self.computations or not self.called <= self.computations.keys():
            raise UserError("HLO text is cut short", where=self.source, remedy="copy it again")
        found = {key: pattern.search(self.header) for key, pattern in _HEADER.items()}
        frontend = _FRONTEND.search(self.header)
        attributes = {} if frontend is None else {k: unescape(v) for k, v in _PAIR.findall(frontend.group(1))}
        module = Module(
            name=self.header.removeprefix("HloModule ").split(",")[0].strip(),
            program_id=program_id,
            fingerprint=_first(found["fingerprint"], ""),
            entry=self.entry,
            computations=_mark_fusions(self.computations, self.fused),
            is_scheduled="is_scheduled=true" in self.header,
            frontend_attributes=attributes,
            num_partitions=int(_first(found["partitions"], "1")),
            num_replicas=int(_first(found["replicas"], "1")),
            source=self.source,
        )
        return checked(module)


def _first(match: re.Match[str] | None, default: str) -> str:
    return default if match is None else match.group(1)


def _mark_fusions(computations: Mapping[str, Computation], fused: set[str]) -> dict[str, Computation]:
    return {
        name: Computation(name, item.instructions, item.root, True, item.execution_thread) if name in fused else item
        for name, item in computations.items()
    }


def _split_operands(line: str, start: int) -> tuple[str, str]:
    """The text between the parentheses of an instruction, and what follows them."""
    end = line.find(")", start)
    inside = line[start:end]
    if "(" in inside or '"' in inside:  # operands with tuple shapes, or a literal
        depth, end = 1, start
        quoted = False
        while end < len(line):
            character = line[end]
            if character == '"' and line[end - 1] != "\\":
                quoted = not quoted
            elif not quoted:
                depth += (character == "(") - (character == ")")
                if depth == 0:
                    break
            end += 1
        inside = line[start:end]
    return inside, line[end + 1 :]
