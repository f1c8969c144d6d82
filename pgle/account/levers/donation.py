"""State that the step copies, because the step may not overwrite its memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pgle.account.levers.batch_rows import state_among
from pgle.account.levers.flow import Flow
from pgle.account.levers.places import in_gib, places, taken_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, OpportunityKind, StepPart
from pgle.errors import in_words, many
from pgle.xla.hlo.module import Instruction

# the function's parameter at the start of an argument's name (``state`` of ``state.params``)
_ROOT = re.compile(r"[A-Za-z_]\w*")

_KEPT = ("bitcast", "reshape")  # opcodes between a parameter and its copy


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if the arguments are donated that the step only copies."""
    found = _copies(flow)
    copied = {kernel: item for kernel, item in found if step.us.get(kernel)}
    if not copied:
        return None
    now_us = taken_us(step, copied)
    arguments = {item.name: item for item in copied.values()}
    size = sum(item.shape.size_bytes for item in arguments.values())
    what = f"{many(len(arguments), 'argument')} ({in_gib(size)} GiB)"
    code = _code(sorted(arguments.values(), key=_number))
    return Opportunity(
        kind=OpportunityKind.DONATION,
        expected_us=now_us,
        least_us=now_us,
        most_us=now_us,
        part=StepPart.COMPUTE,
        basis=step.basis,
        title="Donate the state",
        why=f"copying {what} that results replace takes {in_words(now_us)} a step",
        edit=_EDIT,
        code=code,
        where=places(step, copied),
        instructions=frozenset(copied),
    )


def _number(parameter: Instruction) -> int:
    return parameter.parameter_number or 0


_EDIT = (
    "Pass this to the jax.jit that compiles the step, with what it donates now, and use only "
    "what the step returns."
)


def _code(arguments: list[Instruction]) -> str:
    """The option of `jax.jit` that donates arguments; with a blank if their names are unknown."""
    roots = (_ROOT.match(item.op_name) for item in arguments)
    names = dict.fromkeys(root[0] for root in roots if root is not None)
    listed = ", ".join(f'"{name}"' for name in names)
    return f"donate_argnames=[{listed}]" if names else "donate_argnums=…"


def _copies(flow: Flow) -> Iterator[tuple[str, Instruction]]:
    """Kernels in the entry that copy a parameter, each with that parameter. The parameter is not
    donated, and a result has its shape.
    """
    module = flow.module
    kept = {
        item.name: (str(item.shape),)
        for item in module.entry_computation.parameters
        if item.parameter_number not in module.donated
    }
    results = module.instructions[module.entry_computation.root].shape.arrays
    for name in state_among(kept, map(str, results)):
        for user in _beyond(flow, name):
            if flow.opcode(user) == "copy" and flow.computation[user] == module.entry:
                yield flow.kernel[user], module.instructions[name]


def _beyond(flow: Flow, name: str) -> Iterator[str]:
    """The nodes that take a value, perhaps reshaped."""
    todo = [name]
    for each in todo:
        for user in flow.users.get(each, ()):
            yield user
            if flow.opcode(user) in _KEPT:
                todo.append(user)
