"""Which products XLA computes by the algorithm that a program asks for (`jax.lax.DotAlgorithm`)."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.account.levers.flow import AGAIN, RESHAPED, Flow

WITH_AXES = (
    "XLA drops it from products of two matrices in a program for several GPUs: give the data "
    "three axes there, as in (x.reshape(-1, 2, n) @ w).reshape(len(x), -1)."
)
"""What to write where `keeps_algorithm` is false, but for convolutions."""


def keeps_algorithm(flow: Flow, name: str) -> bool:
    """Whether XLA keeps a product's algorithm.

    A convolution has none. In a program of several partitions, Shardy converts HLO to StableHLO,
    and a product of two matrices, rows by columns, becomes a ``stablehlo.dot``, which has no
    algorithm (openxla/xla `hlo_function_importer.cc`, ``DotIsDefault``; observed with jaxlib
    0.10.2). Products of arrays with more axes keep it, and so do gradients, which contract other
    axes.
    """
    if name in flow.convolutions:
        return False
    if flow.module.num_partitions < 2:
        return True
    is_gradient = flow.is_gradient(name) and AGAIN not in flow.nodes[name].op_name
    return is_gradient or any(axes > 2 for axes in _axes(flow, name))


def _axes(flow: Flow, product: str) -> Iterator[int]:
    """The numbers of axes of a product's inputs and results, as the program has them. XLA removes
    axes of length 1. It splits the contracted axis of some products, and adds the parts.
    """
    for name in flow.inputs[product]:
        for each in flow.looked_at(name, RESHAPED):
            if flow.opcode(each) not in RESHAPED:
                yield _axes_of(flow, each)
    todo = list(flow.users.get(product, ()))
    for name in todo:
        if flow.opcode(name) in RESHAPED:
            todo += flow.users.get(name, ())
        elif flow.opcode(name) != "dynamic-update-slice":
            yield _axes_of(flow, name)


def _axes_of(flow: Flow, name: str) -> int:
    return sum(size > 1 for size in flow.shape(name).dimensions)
