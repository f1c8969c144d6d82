"""Dense linear algebra of libraries: a lower bound from the least operations of each routine.

There is no estimate, because published times of cuSOLVER differ by more than an order of magnitude
between releases, algorithms and sizes. Operations come from LAPACK Working Note 41 (Blackford and
Dongarra), Appendix C (https://www.netlib.org/lapack/lawnspdf/lawn41.pdf). For a singular value
decomposition, the cheaper of two ways counts: direct bidiagonalization, or a QR factorization first
(Chan, 1982). Singular vectors and eigenvectors are left out: the data decides how many must be
computed (deflation).
"""

from __future__ import annotations

import re
from math import prod

from pgle.costs.estimate.products import COMPLEX, is_triangular_solve, operand_shape
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import Hardware, dtype_family

_ROUTINE = re.compile(
    r"(potrf|cholesky|getrf|geqrf|orgqr|ungqr|ormqr|unmqr|syevd|syevj|heevd|gesvd|sytrd|hetrd|syrk)"
)


def routine_of(instruction: Instruction) -> str:
    """Return the LAPACK routine that an instruction calls (``potrf``, ``trsm`` …); empty if it
    calls none.
    """
    if is_triangular_solve(instruction):
        return "trsm"
    if instruction.opcode == "cholesky":
        return "potrf"
    if instruction.opcode != "custom-call":
        return ""
    found = _ROUTINE.search(instruction.custom_call_target.lower())
    return "" if found is None else found[1].replace("cholesky", "potrf")


def least_algebra_us(
    module: Module, instruction: Instruction, hardware: Hardware
) -> float:
    """Return the µs of a routine's least operations at the data sheet's peak; 0 for anything else.

    Libraries compute f32 without tensor cores, and f64 with them.
    """
    operations = _least_operations(module, instruction)
    matrix = operand_shape(module, instruction, 0)
    if not operations or matrix is None:
        return 0.0
    real = dtype_family(COMPLEX.get(matrix.dtype, matrix.dtype))
    peak_per_us = hardware.peak_of("f32" if real == "tf32" else real) * 1e6
    if matrix.dtype in COMPLEX:
        operations *= 3  # real operations of each complex one
    return operations / peak_per_us


def _least_operations(module: Module, instruction: Instruction) -> float:
    """Return the real operations of a routine, from the shapes of its operands; 0 if unknown."""
    routine = routine_of(instruction)
    matrix = operand_shape(module, instruction, 0)
    if not routine or matrix is None or len(matrix.dimensions) < 2:
        return 0.0
    *batches, m, n = matrix.dimensions
    if routine == "trsm":
        right = operand_shape(module, instruction, 1)
        return 0.0 if right is None else float(right.count) * n
    if routine in ("ormqr", "unmqr"):
        return _applied_q(module, instruction)
    times = float(prod(batches))
    if routine == "potrf":
        return times * n**3 / 3
    if routine in ("syevd", "syevj", "heevd", "sytrd", "hetrd"):
        return times * n**3 * 4 / 3
    short = min(m, n)
    long = max(m, n)
    if routine == "syrk":
        return times * short * short * long
    height = long - short / 3
    if routine == "getrf":
        return times * short**2 * height
    if routine == "gesvd":
        direct = 4 * short**2 * height
        by_qr = 2.0 * short**2 * (long + short)
        return times * min(direct, by_qr)
    # a QR factorization, or the routine that makes Q
    return times * 2 * short**2 * height


def _applied_q(module: Module, instruction: Instruction) -> float:
    """Return the operations of multiplying Q, given by its reflectors, with a matrix."""
    reflectors = operand_shape(module, instruction, 0)
    matrix = operand_shape(module, instruction, 2)
    if reflectors is None or matrix is None or len(reflectors.dimensions) < 2:
        return 0.0
    order, count = reflectors.dimensions[-2:]
    vectors = matrix.count / max(order, 1)
    return 2.0 * vectors * count * (2 * order - count)
