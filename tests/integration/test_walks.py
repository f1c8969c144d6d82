"""Every `Next:` is typed as it stands, from many starts, until the way ends."""

import shlex
import sys
from pathlib import Path

import pytest
from documents import write_steps
from walks import FINE, walk

pytestmark = pytest.mark.usefixtures("read_once", "plugin_loaded_once")

DATA = Path(__file__).parents[2] / "testdata"


def data(name: str) -> str:
    """A recording, as a word for a shell."""
    return shlex.quote(str(DATA / name))


WORKLOAD = f"{shlex.quote(sys.executable)} -m pgle.workloads"
PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
READ = (
    f"pgle analyze {data('pax_fsdp4/proc0.sqlite')}",
    f"pgle convert {data('pax_fsdp4/proc0.sqlite')} -o profile.pbtxt",
    f"pgle analyze {data('jax_xplane/jax08_gemm.xplane.pb')}",
    f"pgle analyze {data('hlo/jax-0.10.2/sync')} --against {data('hlo/jax-0.10.2/async')}",
    f"pgle verify {data(PROFILE)} --hlo {data('hlo/jax-0.12.0.1/async')}",
    f"pgle show {data('maxtext_pgle/llama3_1_70b_bf16_64n_sts.pbtxt')}",
    f"pgle confirm {data('maxtext_pgle/llama2_7b_pgle_run.log')}",
    f"pgle predict {data('hlo/jax-0.10.2/async')}",
    "pgle compare steps.jsonl slower.jsonl",
    "pgle flags lint=--xla_gpu_enable_latency_hiding_scheduler=true".replace(
        "=", " ", 1
    ),
)
"""Answers that need no compiler."""

COMPILED = (
    f"pgle predict {data('pax_fsdp4/proc0/dump')}",
    f"pgle rehearse --target h100 --devices 4 {data('stablehlo/fsdp_mlp_jax_0.10.2.mlir')}",
    f"pgle rehearse --target a100 --devices 4 -- {WORKLOAD} overlap --compile-only",
    f"pgle rehearse --target h100 --devices 4 -- {WORKLOAD} fsdp --layers 2 --compile-only",
    f"pgle tune --budget 10 --target h100 --devices 4 -- {WORKLOAD} fsdp --layers 2 --compile-only",
)
"""Answers of XLA's compiler."""

REPEATED = (
    f"pgle run --target a100 --capture simulated -- {WORKLOAD} overlap --compile-only",
    f"pgle run --target h100 --capture simulated -- {WORKLOAD} fsdp --layers 2 --compile-only",
)
"""Starts that are ends of the ways before."""


ATTENTION = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
rows = NamedSharding(mesh, P("d"))


def attend(w, x):
    q = (x @ w).reshape(8, 256, 8, 64)
    scores = jnp.einsum("bqnh,bknh->bnqk", q, q).astype(jnp.float32)
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores).astype(q.dtype), q)


def step(w, x):
    loss = lambda w: (attend(w, x).astype(jnp.float32) ** 2).mean()
    return w - 0.1 * jax.grad(loss)(w).astype(w.dtype)


w = jax.device_put(jnp.ones((512, 512), jnp.bfloat16), rows)
x = jax.device_put(jnp.ones((2048, 512), jnp.bfloat16), rows)
step = jax.jit(step, donate_argnums=(0,), out_shardings=rows)
for _ in range(30):
    w = jax.block_until_ready(step(w, x))
"""
HOW = "--target h100 --devices 4"
PROGRAMS = {
    "overlap": f"{WORKLOAD} overlap --compile-only",
    "attention": f"{shlex.quote(sys.executable)} attention.py",
}
"""A program with communication to hide, and one with an edit to try."""

STARTS = (
    "pgle run --run-dir run --capture simulated {how} -- {program}",
    "pgle rehearse {how} -- {program}",
    "pgle predict run",
    "pgle analyze run/perf",
    "pgle advise --budget 4 {how} -- {program}",
    "pgle tune --budget 4 {how} -- {program}",
)
"""Typed in their order in one folder: later answers know what earlier ones showed."""


def check(first: str, folder: Path) -> None:
    write_steps(folder)
    found = walk(first, folder)
    assert found.end in ("done", "gpu"), (found.commands, found.last)
    assert set(found.codes) <= set(FINE), (found.commands, found.codes, found.last)


@pytest.mark.parametrize("first", READ)
def test_the_way_from_an_answer_that_was_read_ends(first: str, tmp_path: Path) -> None:
    check(first, tmp_path)


@pytest.mark.slow
@pytest.mark.rehearse
@pytest.mark.parametrize(
    "first",
    [*COMPILED, *(pytest.param(one, marks=pytest.mark.minutes) for one in REPEATED)],
)
def test_the_way_from_an_answer_of_the_compiler_ends(
    first: str, tmp_path: Path
) -> None:
    check(first, tmp_path)


@pytest.mark.slow
@pytest.mark.rehearse
@pytest.mark.minutes
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_way_on_a_program_ends(name: str, tmp_path: Path) -> None:
    (tmp_path / "attention.py").write_text(ATTENTION)
    for start in STARTS:
        check(start.format(how=HOW, program=PROGRAMS[name]), tmp_path)


def test_a_module_whose_only_gain_is_open_asks_for_its_program(tmp_path: Path) -> None:
    first = f"pgle predict {data('hlo/jax-0.10.2/async')}"
    found = walk(first, tmp_path, always_in_shell=True)
    assert found.end == "done"
    assert "is open; to try it, give pgle the program" in found.last
