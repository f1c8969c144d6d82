"""An optimizer that runs a small kernel for each parameter of the model."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import bound_alone, least_saved_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.estimate import bytes_accessed
from pgle.errors import in_words
from pgle.xla.collectives import collective_kind
from pgle.xla.targets import KERNEL_US

# a kernel below this time mostly launches and waits for its first bytes from memory
_SMALL_US = 10.0
_MANY = 64  # an optimizer with at least this many small kernels counts as split up

_FLAT_KERNELS = 8
"""Kernels of a flat optimizer. XLA concatenates gradients and splits updates in groups."""

_COPIES = 4
"""Passes over memory to flatten gradients and to split updates again, each read and written
(optax.flatten, https://optax.readthedocs.io/en/latest/api/transformations.html).
"""

_MORE = frozenset(
    (
        *("dot", "convolution", "custom-call", "reduce-window", "scatter"),
        *("gather", "sort", "fft", "while", "conditional", "rng", "cholesky"),
    )
)
"""Opcodes of kernels that do more than reduce gradients and compute each element by itself."""


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if a few kernels update all parameters."""
    kernels = [name for name in _updates(flow) if _is_small(step, name)]
    if len(kernels) < _MANY:
        return None
    now_us = taken_us(step, kernels)
    flat_us = _flat_us(step, kernels)
    if flat_us >= now_us:
        return None
    is_whole = step.module.num_partitions == 1
    update = (
        f"{len(kernels):,} kernels of at most {in_words(_SMALL_US)} update the state"
    )
    why = f"{update} in {in_words(now_us)} a step, a few large ones in {in_words(flat_us)}"
    known = Opportunity(
        kind=OpportunityKind.OPTIMIZER,
        expected_us=now_us - flat_us,
        least_us=least_saved_us(now_us, flat_us),
        most_us=now_us - flat_us,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Update small parameters together",
        why=why,
        edit=_WHOLE if is_whole else _SHARDED,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )
    return known if is_whole else bound_alone(known)


_EACH = (
    ". This is the same only if it updates each element by itself, and all alike: not "
    "LAMB, Adafactor, or decay with a mask."
)
_WHOLE = (
    f"Wrap the optimizer in optax.flatten, so that it updates one long array{_EACH}"
)
_SHARDED = (
    "Wrap the optimizer of parameters that are not sharded (scales, biases) in "
    f"optax.flatten, or stack the parameters of equal layers{_EACH}"
)


def _updates(flow: Flow) -> Iterator[str]:
    """The kernels in the entry that compute results of the program element by element."""
    module = flow.module
    root = module.instructions[module.entry_computation.root]
    results = root.operands if root.opcode == "tuple" else (root.name,)
    seen: set[str] = set()
    for name in map(flow.made_by, results):
        while flow.opcode(name) in ("bitcast", "reshape"):
            name = flow.inputs[name][0]
        kernel = flow.kernel.get(name, "")
        if not kernel or kernel in seen or flow.computation[name] != module.entry:
            continue
        seen.add(kernel)
        if not _does_more(flow, kernel):
            yield kernel


def _does_more(flow: Flow, kernel: str) -> bool:
    module = flow.module
    item = module.instructions[kernel]
    fused = module.fused(item)
    inside = (item,) if fused is None else fused.instructions
    if any(node.opcode in _MORE for node in inside):
        return True
    return collective_kind(module, item) is not None or item.opcode.endswith("-done")


def _is_small(step: StepCosts, kernel: str) -> bool:
    times = step.count.get(kernel, 1.0) or 1.0
    return 0 < step.us.get(kernel, 0.0) / times < _SMALL_US


def _flat_us(step: StepCosts, kernels: list[str]) -> float:
    """Microseconds in a step of an optimizer that works on flat arrays."""
    module = step.module
    items = [module.instructions[name] for name in kernels]
    moved = sum(bytes_accessed(module, item)[0] for item in items)
    parameters = sum(_largest_bytes(step, item.name) for item in items)
    size = moved + _COPIES * parameters
    return _FLAT_KERNELS * KERNEL_US + step.hardware.memory_us(size)


def _largest_bytes(step: StepCosts, kernel: str) -> int:
    """Bytes of a kernel's largest result: the parameter, if its moments are results too."""
    shape = step.module.instructions[kernel].shape
    return max(each.size_bytes for each in shape.arrays)
