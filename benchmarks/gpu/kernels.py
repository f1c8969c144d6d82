"""Single kernels, large enough that the launch does not count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.gpu.cases import Array, Case

SMALL = 32  # dimension at most of the small cases
HIGHEST = "highest"


def kernels(*, small: bool) -> tuple[Case, ...]:
    """All cases, in order of worth."""
    found = (
        *_products(),
        *_irregular(),
        *_moves(),
        *_reductions(),
        *_random(),
        *_algebra(),
    )
    return tuple(case.clipped(SMALL) for case in found) if small else found


def _product(
    x: Any, y: Any, precision: str | None = None, out: str | None = None
) -> Any:
    import jax.numpy as jnp

    return jnp.matmul(x, y, precision=precision, preferred_element_type=out)


def _batched(x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    return jnp.einsum("bij,bjk->bik", x, y)


def _transposed_left(x: Any, y: Any) -> Any:
    return x.T @ y


def _two(
    name: str,
    sizes: tuple[int, int, int],
    dtype: str,
    function: Callable[..., Any] = _product,
) -> Case:
    """A product of matrices of m × k and k × n."""
    m, k, n = sizes
    return Case(name, "product", function, (Array((m, k), dtype), Array((k, n), dtype)))


def _products() -> tuple[Case, ...]:
    square, wide, thin = (8192, 8192, 8192), (8192, 4096, 16384), (8192, 12288, 1024)
    highest = partial(_product, precision=HIGHEST)
    eight = partial(_product, out="float32")
    whole = partial(_product, out="int32")
    return (
        _two("bf16_square", square, "bfloat16"),
        _two("bf16_wide", wide, "bfloat16"),
        _two("bf16_thin", thin, "bfloat16"),
        _two("bf16_small", (1024, 1024, 1024), "bfloat16"),
        _two("bf16_long_contraction", (512, 131072, 512), "bfloat16"),
        _two("bf16_transposed_left", square, "bfloat16", _transposed_left),
        _two("f32_default", square, "float32"),
        _two("f32_highest", square, "float32", highest),
        _two("f16_square", square, "float16"),
        _two("fp8_square", square, "float8_e4m3fn", eight),
        _two("fp8_wide", wide, "float8_e4m3fn", eight),
        _two("int8_square", square, "int8", whole),
        Case(
            "bf16_batched",
            "product",
            _batched,
            (Array((96, 2048, 128)), Array((96, 128, 2048))),
        ),
        Case(
            "bf16_batched_small",
            "product",
            _batched,
            (Array((4096, 64, 64)), Array((4096, 64, 64))),
        ),
        _two("gemv_bf16", (16384, 16384, 1), "bfloat16"),
        _two("gemv_f32", (1, 16384, 16384), "float32"),
        _two("bf16_odd", (8191, 4097, 8193), "bfloat16"),
    )


def _scatter_add(table: Any, rows: Any, at: Any) -> Any:
    return table.at[at].add(rows)


def _gather(table: Any, at: Any) -> Any:
    return table[at]


def _irregular() -> tuple[Case, ...]:
    """Scatter, gather, sort: what data decides."""
    import jax
    import jax.numpy as jnp

    count, width, most = 16384, 1024, 65536
    table, rows = Array((most, width), "float32"), Array((count, width), "float32")
    half, half_rows = Array((most, width)), Array((count, width))
    unique = Array((count,), "int32", "unique", most)
    equal = Array((count,), "int32", "equal", most)
    random = Array((count,), "int32", "random", most)
    line = Array((1 << 24,), "float32")
    codes = Array((1 << 22,), "int32", "random", 1024)
    top = Array((512, 65536), "float32")

    def top_16(x: Any) -> Any:
        return jax.lax.top_k(x, min(16, x.shape[-1]))

    def sums(values: Any, at: Any) -> Any:
        return jax.ops.segment_sum(values, at, num_segments=1024)

    def counts(at: Any) -> Any:
        return jnp.bincount(at, length=1024)

    return (
        Case("scatter_unique", "scatter", _scatter_add, (table, rows, unique)),
        Case("scatter_equal", "scatter", _scatter_add, (table, rows, equal)),
        Case("scatter_random", "scatter", _scatter_add, (table, rows, random)),
        Case("scatter_bf16_unique", "scatter", _scatter_add, (half, half_rows, unique)),
        Case("scatter_bf16_equal", "scatter", _scatter_add, (half, half_rows, equal)),
        Case("segment_sum", "scatter", sums, (Array((1 << 22,), "float32"), codes)),
        Case("bincount", "scatter", counts, (codes,)),
        Case("gather_unique", "gather", _gather, (table, unique)),
        Case("gather_equal", "gather", _gather, (table, equal)),
        Case("gather_bf16_random", "gather", _gather, (half, random)),
        Case("sort_line", "sort", jnp.sort, (line,)),
        Case("sort_rows", "sort", jnp.sort, (top,)),
        Case("argsort_rows", "sort", jnp.argsort, (top,)),
        Case("top_k", "sort", top_16, (top,)),
    )


def _moves() -> tuple[Case, ...]:
    """Transposes, copies, FFT."""
    import jax
    import jax.numpy as jnp

    def swapped(x: Any) -> Any:
        return jnp.swapaxes(x, 0, 1)

    def moved(x: Any) -> Any:
        return jnp.transpose(x, (0, 2, 1))

    def moved_sum(x: Any, y: Any) -> Any:
        return moved(x) * 2 + y

    def to_host(x: Any) -> Any:
        return jax.device_put(x, jax.memory.Space.Host)

    def to_host_and_back(x: Any) -> Any:
        return jax.device_put(to_host(x + 1), jax.memory.Space.Device) * 2

    cube = Array((256, 1024, 1024))
    plane = Array((16384, 16384))
    complex_ = "complex64"
    return (
        Case("transpose_kept_minor", "transpose", swapped, (Array((1024, 256, 1024)),)),
        Case("transpose_moved_minor", "transpose", moved, (cube,)),
        Case(
            "transpose_plane_f32",
            "transpose",
            jnp.transpose,
            (Array((16384, 16384), "float32"),),
        ),
        Case("transpose_plane_bf16", "transpose", jnp.transpose, (plane,)),
        Case("transpose_in_fusion", "transpose", moved_sum, (cube, cube)),
        Case("fft_line", "fft", jnp.fft.fft, (Array((1 << 26,), complex_),)),
        Case("fft_lines", "fft", jnp.fft.fft, (Array((16384, 4096), complex_),)),
        Case("fft_planes", "fft", jnp.fft.fft2, (Array((16, 2048, 2048), complex_),)),
        Case(
            "fft_cube_real", "fft", jnp.fft.rfftn, (Array((512, 512, 512), "float32"),)
        ),
        Case("copy_to_host", "host copy", to_host, (plane,)),
        Case("copy_to_host_and_back", "host copy", to_host_and_back, (plane,)),
    )


def _reductions() -> tuple[Case, ...]:
    import jax
    import jax.numpy as jnp

    plane = Array((16384, 16384))
    wide = Array((16384, 16384), "float32")

    def pointwise(x: Any) -> Any:
        return jax.nn.gelu(x) + 1

    def norm(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)

    return (
        Case("pointwise_bf16", "pointwise", pointwise, (plane,)),
        Case("pointwise_f32", "pointwise", pointwise, (wide,)),
        Case("softmax", "reduction", jax.nn.softmax, (wide,)),
        Case("softmax_bf16", "reduction", jax.nn.softmax, (plane,)),
        Case("rms_norm", "reduction", norm, (wide,)),
        Case("sum_all", "reduction", jnp.sum, (wide,)),
        Case("sum_rows", "reduction", partial(jnp.sum, axis=1), (wide,)),
        Case("sum_columns", "reduction", partial(jnp.sum, axis=0), (wide,)),
        Case("argmax_rows", "reduction", partial(jnp.argmax, axis=1), (wide,)),
        Case("cumsum_rows", "scan", partial(jnp.cumsum, axis=1), (wide,)),
        Case("cumsum_columns", "scan", partial(jnp.cumsum, axis=0), (wide,)),
    )


def _random() -> tuple[Case, ...]:
    import jax
    import jax.numpy as jnp

    plane = Array((16384, 16384))

    def normal(x: Any) -> Any:
        return jax.random.normal(jax.random.key(0), x.shape, x.dtype)

    def bits(x: Any) -> Any:
        return jax.random.bits(jax.random.key(0), x.shape, "uint32")

    def bits_of_hardware(x: Any) -> Any:
        return jax.random.bits(jax.random.key(0, impl="rbg"), x.shape, "uint32")

    def dropout(x: Any) -> Any:
        kept = jax.random.bernoulli(jax.random.key(1), 0.9, x.shape)
        return jnp.where(kept, x / 0.9, 0)

    return (
        Case("rng_normal", "rng", normal, (plane,)),
        Case("rng_bits", "rng", bits, (plane,)),
        Case("rng_bits_rbg", "rng", bits_of_hardware, (plane,)),
        Case("dropout", "rng", dropout, (plane,)),
    )


def _algebra() -> tuple[Case, ...]:
    """Dense linear algebra, the slowest last."""
    import jax
    import jax.numpy as jnp

    def solved(a: Any, b: Any) -> Any:
        return jax.scipy.linalg.solve_triangular(a, b, lower=True)

    def positive(size: int) -> Array:
        return Array((size, size), "float32", "positive")

    right = Array((8192, 8192), "float32")
    return (
        Case("cholesky", "algebra", jnp.linalg.cholesky, (positive(8192),)),
        Case("triangular_solve", "algebra", solved, (positive(8192), right)),
        Case("qr", "algebra", jnp.linalg.qr, (Array((4096, 1024), "float32"),)),
        Case("eigh", "algebra", jnp.linalg.eigh, (positive(2048),)),
    )
