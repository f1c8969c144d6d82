"""Scheduled modules drawn at random, with what they have to compute and to move, counted as they
are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pgle.xla.hlo.module import (
    HOST_MEMORY_SPACE,
    Computation,
    Instruction,
    Module,
    Shape,
)

DEVICES = 8


@dataclass
class Work:
    """What one step of a module has to do, from the shapes that were drawn."""

    operations: float = 0.0  # of bf16 products
    link_bytes: float = 0.0  # that enter each device over NVLink
    out_bytes: float = 0.0  # device to host
    in_bytes: float = 0.0  # host to device


@dataclass
class RandomModule:
    """Draws a module; the same seed gives the same one."""

    seed: int
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.computations: dict[str, Computation] = {}
        self.count = 0
        self._computation("entry", self.random.randint(4, 14), times=1, depth=0)
        self.module = Module(
            f"m{self.seed}",
            1,
            "",
            "entry",
            self.computations,
            True,
            num_partitions=DEVICES,
        )

    def _name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}.{self.count}"

    def _computation(self, name: str, length: int, times: int, depth: int) -> str:
        items: list[Instruction] = []
        pending: list[Instruction] = []  # dones whose starts are in `items`
        for _ in range(length):
            kinds = [
                "product",
                "product",
                "loop fusion",
                "gather",
                "reduce",
                "copy out",
                "copy in",
                "async product",
                "sync",
            ]
            kinds += ["while", "conditional"] if depth < 2 else []
            self._add(self.random.choice(kinds), name, items, pending, times, depth)
            while pending and self.random.random() < 0.4:
                items.append(pending.pop(self.random.randrange(len(pending))))
        items += pending
        self.computations[name] = Computation(name, tuple(items), items[-1].name)
        return name

    def _add(
        self,
        kind: str,
        where: str,
        items: list[Instruction],
        pending: list[Instruction],
        times: int,
        depth: int,
    ) -> None:
        if kind in ("product", "async product"):
            m, n, k = (self.random.choice((512, 1024, 4096)) for _ in range(3))
            self.work.operations += times * 2.0 * m * n * k
            x, y = self._given((m, k), where, items), self._given((k, n), where, items)
            shape, name = Shape("bf16", (m, n)), self._name("dot")
            if kind == "product":
                items.append(
                    Instruction(
                        name, "dot", shape, where, (x, y), dot_lhs_contracting=(1,)
                    )
                )
                return
            inner = [
                Instruction(
                    f"{name}.{part}",
                    "parameter",
                    Shape("bf16", size),
                    f"{name}.body",
                    parameter_number=number,
                )
                for number, (part, size) in enumerate((("x", (m, k)), ("y", (k, n))))
            ]
            product = Instruction(
                f"{name}.dot",
                "dot",
                shape,
                f"{name}.body",
                (inner[0].name, inner[1].name),
                dot_lhs_contracting=(1,),
            )
            self.computations[f"{name}.body"] = Computation(
                f"{name}.body", (*inner, product), product.name
            )
            whole, body = Shape("tuple", elements=(shape,)), (f"{name}.body",)
            items.append(
                Instruction(
                    f"{name}.start", "async-start", whole, where, (x, y), called=body
                )
            )
            pending.append(
                Instruction(
                    f"{name}.done",
                    "async-done",
                    shape,
                    where,
                    (f"{name}.start",),
                    called=body,
                )
            )
        elif kind == "loop fusion":
            size = self.random.choice((1 << 16, 1 << 22, 1 << 26))
            x = self._given((size,), where, items)
            items.append(
                Instruction(
                    self._name("add"), "add", Shape("bf16", (size,)), where, (x, x)
                )
            )
        elif kind in ("gather", "reduce", "sync"):
            size = self.random.choice((1 << 14, 1 << 20, 1 << 26))
            self.work.link_bytes += times * 2 * size * (1 - 1 / DEVICES)
            name, gathers = self._name(kind), kind != "reduce"
            full, part = Shape("bf16", (size,)), Shape("bf16", (size // DEVICES,))
            given, result = (part, full) if gathers else (full, full)
            x = self._given(given.dimensions, where, items)
            opcode = "all-gather" if gathers else "all-reduce"
            if kind == "sync":
                items.append(Instruction(name, opcode, result, where, (x,)))
                return
            start = Shape("tuple", elements=(given, result)) if gathers else result
            items.append(
                Instruction(f"{name}.start", f"{opcode}-start", start, where, (x,))
            )
            pending.append(
                Instruction(
                    f"{name}.done", f"{opcode}-done", result, where, (f"{name}.start",)
                )
            )
        elif kind in ("copy out", "copy in"):
            size = self.random.choice((1 << 14, 1 << 20, 1 << 26))
            host, device = (
                Shape("bf16", (size,), memory_space=HOST_MEMORY_SPACE),
                Shape("bf16", (size,)),
            )
            given, result = (device, host) if kind == "copy out" else (host, device)
            name = self._name("copy")
            items.append(Instruction(f"{name}.x", "parameter", given, where))
            start = Shape("tuple", elements=(result, given))
            items.append(
                Instruction(f"{name}.start", "copy-start", start, where, (f"{name}.x",))
            )
            pending.append(
                Instruction(
                    f"{name}.done", "copy-done", result, where, (f"{name}.start",)
                )
            )
            moved = times * 2.0 * size
            self.work.out_bytes += moved if kind == "copy out" else 0.0
            self.work.in_bytes += moved if kind == "copy in" else 0.0
        elif kind == "while":
            trips, body = self.random.choice((1, 3, 40)), self._name("body")
            self._computation(body, self.random.randint(1, 5), times * trips, depth + 1)
            config = f'{{"known_trip_count":{{"n":"{trips}"}}}}'
            items.append(
                Instruction(
                    self._name("while"),
                    "while",
                    Shape("tuple"),
                    where,
                    called=(body,),
                    backend_config=config,
                )
            )
        else:  # both branches may be the one that is not taken, so they count as nothing
            bodies = tuple(self._name("branch") for _ in range(2))
            for body in bodies:
                self._computation(body, 2, 0, depth + 1)
            items.append(
                Instruction(
                    self._name("conditional"),
                    "conditional",
                    Shape("tuple"),
                    where,
                    called=bodies,
                )
            )

    def _given(
        self, dimensions: tuple[int, ...], where: str, items: list[Instruction]
    ) -> str:
        name = self._name("x")
        items.append(Instruction(name, "parameter", Shape("bf16", dimensions), where))
        return name
