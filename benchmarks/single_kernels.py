"""Does the range of a program of one kernel hold what the hardware needs, and does it end where
there is no model?

Programs in plain JAX are lowered for CUDA and rehearsed for one H100. What the hardware needs is
counted here, from the shapes: operations over the data sheet's peak of the precision that is asked
for, and bytes, once or as many passes as shared memory forces, over the bandwidth. No function
under test is asked.

python benchmarks/single_kernels.py [NAME...]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_enable_x64", True)

TFLOPS = {"f32": 67, "tf32": 494, "f16": 989, "f8": 1979, "s8": 1979, "f64": 67}
"""NVIDIA H100 SXM, data sheet, dense; FP64 on tensor cores."""
BYTES_PER_US = 3352e3  # of its memory (openxla/xla's description of the GPU)
N = 8192
Array = jax.Array


@dataclass(frozen=True)
class Program:
    """A program, and what it needs at least."""

    name: str
    run: Callable[..., Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    needed_us: float  # by the larger of operations and bytes
    has_model: bool = True  # whether pgle claims one: else the range must have no end


def array(dtype: str, *dimensions: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, dtype)


def operations_us(operations: float, peak: str) -> float:
    return operations / (TFLOPS[peak] * 1e6)


def bytes_us(size: float) -> float:
    return size / BYTES_PER_US


def products() -> Iterator[Program]:
    for precision, peak in (("default", "tf32"), ("high", "tf32"), ("highest", "f32")):
        square = array("float32", N, N)
        yield Program(
            f"f32 product, {precision}",
            lambda x, y, precision=precision: jnp.dot(x, y, precision=precision),
            (square, square),
            operations_us(2 * N**3, peak),
        )
    for dtype, peak in (("bfloat16", "f16"), ("float64", "f64")):
        square = array(dtype, N, N)
        yield Program(
            f"{dtype} product", jnp.dot, (square, square), operations_us(2 * N**3, peak)
        )
    eight = array("float8_e4m3fn", N, N)
    yield Program(
        "fp8 product",
        lambda x, y: jnp.dot(x, y.T, preferred_element_type=jnp.bfloat16),
        (eight, eight),
        operations_us(2 * N**3, "f8"),
    )
    whole = array("int8", N, N)
    yield Program(
        "int8 product",
        lambda x, y: jnp.dot(x, y.T, preferred_element_type=jnp.int32),
        (whole, whole),
        operations_us(2 * N**3, "s8"),
    )
    square = array("float32", N, N)
    for preset, peak in (("BF16_BF16_F32_X3", "f16"), ("TF32_TF32_F32_X3", "tf32")):
        yield Program(
            f"f32 product, {preset}",
            lambda x, y, preset=preset: jnp.dot(
                x, y, precision=lax.DotAlgorithmPreset[preset]
            ),
            (square, square),
            operations_us(3 * 2 * N**3, peak),
        )
    complex_ = array("complex64", 4096, 4096)
    yield Program(
        "c64 product, highest",
        lambda x, y: jnp.dot(x, y, precision="highest"),
        (complex_, complex_),
        operations_us(3 * 2 * 4096**3, "f32"),
    )
    batched = array("float32", 64, 1024, 1024)
    yield Program(
        "f32 batched product, highest",
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y, precision="highest"),
        (batched, batched),
        operations_us(64 * 2 * 1024**3, "f32"),
    )


def convolutions() -> Iterator[Program]:
    winograd = 2.25
    operations = 2 * 64 * 56 * 56 * 256 * 9 * 256
    cases = (
        ("float32", "highest", "f32"),
        ("float32", "default", "tf32"),
        ("bfloat16", "default", "f16"),
    )
    for dtype, precision, peak in cases:
        yield Program(
            f"{dtype} convolution, {precision}",
            lambda x, k, precision=precision: lax.conv_general_dilated(
                x,
                k,
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                precision=precision,
            ),
            (array(dtype, 64, 56, 56, 256), array(dtype, 3, 3, 256, 256)),
            operations_us(operations / winograd, peak),
        )


def transforms() -> Iterator[Program]:
    line = array("complex64", 1 << 16, 1024)
    yield Program("fft, 65,536 × 1,024", jnp.fft.fft, (line,), bytes_us(2 * 8 * 2**26))
    long = array("complex64", 1 << 26)
    yield Program("fft, 2^26", jnp.fft.fft, (long,), bytes_us(2 * 2 * 8 * 2**26))
    plane = array("complex64", 16, 4096, 4096)
    yield Program(
        "fft2, 16 × 4,096²", jnp.fft.fft2, (plane,), bytes_us(2 * 2 * 8 * 2**28)
    )
    cube = array("float32", 512, 512, 512)
    yield Program("rfftn, 512³", jnp.fft.rfftn, (cube,), bytes_us((4 + 3 * 4) * 2**27))
    double = array("complex128", 4096, 4096)
    yield Program(
        "fft2, 4,096², c128", jnp.fft.fft2, (double,), bytes_us(2 * 2 * 16 * 2**24)
    )
    prime = array("complex64", 4096, 4099)
    yield Program(
        "fft, 4,096 × 4,099", jnp.fft.fft, (prime,), bytes_us(2 * 8 * 4096 * 4099)
    )


def moves() -> Iterator[Program]:
    square = array("float32", 16384, 16384)
    size = 4 * 2**28
    yield Program("transpose", jnp.transpose, (square,), bytes_us(2 * size))
    yield Program("softmax", jax.nn.softmax, (square,), bytes_us(2 * size))
    yield Program("sum", jnp.sum, (square,), bytes_us(size))
    yield Program(
        "cumsum", lambda x: jnp.cumsum(x, axis=1), (square,), bytes_us(2 * size)
    )
    yield Program(
        "sort, 2^26 f32",
        jnp.sort,
        (array("float32", 1 << 26),),
        bytes_us(4 * 2 * 4 * 2**26),
    )
    pairs = array("float32", 1 << 26)
    yield Program("argsort, 2^26", jnp.argsort, (pairs,), bytes_us(4 * 2 * 8 * 2**26))
    rows = array("float32", 256, 131072)
    yield Program(
        "top_k, 50 of 131,072", lambda x: lax.top_k(x, 50), (rows,), bytes_us(4 * 2**25)
    )
    yield Program(
        "top_k, 8 of 131,072", lambda x: lax.top_k(x, 8), (rows,), bytes_us(4 * 2**25)
    )


def indexed() -> Iterator[Program]:
    table, tokens = array("bfloat16", 50304, 1024), array("int32", 1 << 18)
    rows = 2 * 1024 * 2**18
    yield Program(
        "gather", lambda t, i: t[i], (table, tokens), bytes_us(rows + 2 * 50304 * 1024)
    )
    for dtype, width in (("bfloat16", 2), ("float32", 4)):
        yield Program(
            f"scatter-add, {dtype}",
            lambda t, i, u: t.at[i].add(u),
            (
                array(dtype, 50304, 1024),
                array("int32", 1 << 15),
                array(dtype, 1 << 15, 1024),
            ),
            bytes_us(width * 1024 * (2**15 + 2 * 50304)),
        )
    yield Program(
        "bincount, 2^26 into 256",
        lambda i: jnp.bincount(i, length=256),
        (array("int32", 1 << 26),),
        bytes_us(4 * 2**26),
    )
    yield Program(
        "segment_sum, 2^20 × 128 into 4,096",
        lambda x, i: jax.ops.segment_sum(x, i, 4096),
        (array("float32", 1 << 20, 128), tokens_of(1 << 20)),
        bytes_us(4 * 128 * 2**20),
    )
    yield Program(
        "gather of elements",
        lambda t, i: t[i],
        (array("float32", 1 << 28), tokens_of(1 << 26)),
        bytes_us(4 * 2 * 2**26),
    )


def tokens_of(count: int) -> jax.ShapeDtypeStruct:
    return array("int32", count)


def random() -> Iterator[Program]:
    key = array("uint32", 2)
    draws = 1 << 28
    yield Program(
        "normal, 2^28 f32",
        lambda k: jax.random.normal(k, (draws,), "float32"),
        (key,),
        bytes_us(4 * draws),
    )
    yield Program(
        "dropout, 8,192 × 16,384 bf16",
        lambda k, x: jnp.where(jax.random.bernoulli(k, 0.9, x.shape), x, 0),
        (key, array("bfloat16", 8192, 16384)),
        bytes_us(2 * 2 * 2**27),
    )


def algebra() -> Iterator[Program]:
    n = 8192
    square, small = array("float32", n, n), array("float32", 2048, 2048)

    def of(
        name: str, run: Callable[..., Any], operations: float, *arguments: Any
    ) -> Program:
        return Program(
            name, run, arguments, operations_us(operations, "f32"), has_model=False
        )

    yield of("cholesky, 8,192", jnp.linalg.cholesky, n**3 / 3, square)
    yield of("lu, 8,192", jax.scipy.linalg.lu_factor, n**3 * 2 / 3, square)
    yield of("qr, 8,192", jnp.linalg.qr, n**3 * 8 / 3, square)
    yield of("eigh, 2,048", jnp.linalg.eigh, 2048**3 * 4 / 3, small)
    yield of("svd, 2,048", jnp.linalg.svd, 2048**3 * 8 / 3, small)
    yield of(
        "triangular solve, 8,192",
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        n**3,
        square,
        square,
    )
    double = array("float64", n, n)
    yield Program(
        "cholesky, 8,192, f64",
        jnp.linalg.cholesky,
        (double,),
        operations_us(n**3 / 3, "f64"),
        has_model=False,
    )
    yield Program(
        "a user's FFI call",
        lambda x: jax.ffi.ffi_call("users_own", jax.ShapeDtypeStruct(x.shape, x.dtype))(
            x
        ),
        (square,),
        0.0,
        has_model=False,
    )


def programs() -> Iterator[Program]:
    for kind in (products, convolutions, transforms, moves, indexed, random, algebra):
        yield from kind()


def lowered(program: Program) -> str:
    """The program's StableHLO for CUDA."""
    traced = jax.jit(program.run).trace(*program.arguments)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def rehearsed(text: str, folder: Path) -> dict[str, Any]:
    """The prediction of LHS without a profile, as ``pgle rehearse --json`` has it; what failed if
    it did.
    """
    path = folder / "program.mlir"
    path.write_text(text)
    command = [sys.executable, "-m", "pgle", "rehearse", str(path), "--target", "h100"]
    command += ["--devices", "1", "-o", str(folder / "out"), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    document: dict[str, Any] = json.loads(found.stdout)
    side = document.get("baseline")
    return (
        side
        if isinstance(side, dict)
        else {"failed": document.get("error", {}).get("what")}
    )


def judged(program: Program, side: dict[str, Any]) -> str:
    """What is wrong with a range; empty if nothing."""
    if "failed" in side:
        return f"failed: {side['failed']}"
    most = inf if side["interval_us"][1] is None else side["interval_us"][1]
    if most < program.needed_us:
        return "the range excludes what the hardware needs"
    if side["lower_bound"] == program.has_model:
        return (
            "no model, but an end" if side["interval_us"][1] is not None else "no end"
        )
    return ""


def milliseconds(us: float | None) -> str:
    return "no end" if us is None else f"{us / 1e3:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    names = parser.parse_args().names
    print(
        "| program | needs at least, ms | predicted | range | wrong |\n|---|---|---|---|---|"
    )
    wrong = count = 0
    for program in programs():
        if names and not any(name in program.name for name in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            side = rehearsed(lowered(program), Path(folder))
        found = judged(program, side)
        count += 1
        wrong += bool(found)
        low, high = side.get("interval_us", (None, None))
        cells = (
            program.name,
            milliseconds(program.needed_us),
            milliseconds(side.get("step_us")),
        )
        print(
            f"| {' | '.join(cells)} | {milliseconds(low)} … {milliseconds(high)} | {found} |",
            flush=True,
        )
    print(f"\n{wrong} of {count} wrong")


if __name__ == "__main__":
    main()
