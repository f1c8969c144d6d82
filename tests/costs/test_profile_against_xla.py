"""What we say XLA takes from a profile against XLA:GPU itself, compiling without a GPU."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile, effective_costs
from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.xla.hlo.schedule_dump import read_schedule_dump

pytestmark = pytest.mark.rehearse

A, B = "gemm_fusion_dot.1", "gemm_fusion_dot.2"
"""Two compute instructions of the program."""

VALUES = {
    "first": [("x", 1.0)],
    "plain": [(A, 11.0), (B, 12.5)],
    "duplicates": [(A, 11.0), (B, 5.0), (A, 3.0)],
    "remat": [
        (A, 10.0),
        (f"{A}.remat", 20.0),
        (f"{A}.remat3", 60.0),
        (B, 1.0),
        (B, 3.0),
    ],
    "remat_inside": [
        (A, 10.0),
        (A, 20.0),
        (f"{A}.remat.1", 90.0),
        ("x.rematY", 1.0),
        (B, 1.0),
    ],
    "prefix": [("FP::" + A, 21.0), (B, 4.0)],
    "prefix_other": [("0" * 32 + "::" + A, 21.0), (A, 6.0), (B, 4.0)],
    "prefix_then_bare": [("FP::" + A, 9.0), (A, 7.0), (B, 4.0)],
    "bare_then_prefix": [(A, 7.0), ("FP::" + A, 9.0), (B, 4.0)],
    "three_parts": [(A, 7.0), ("FP::x::" + A, 9.0), (B, 4.0)],
    "other_remat": [(A, 2.0), (A, 4.0), ("0" * 32 + "::x.remat", 9.0), (B, 4.0)],
    "odd_numbers": [(A, 1e-3), (B, 0.0)],
}
"""Profiles whose believed costs are compared, but for the first; FP stands for the module's
fingerprint, which the first compilation tells.
"""

ACCEPTED = {
    "comments.pbtxt": b'# x\ncosts { name: "a" cost_us: 1 } # y\r\n',
    "quotes.pbtxt": b"costs{name:'a'\"b\"cost_us:1e3,};costs<>",
    "list.pbtxt": b'costs: [{ name: "a" }, < cost_us: 2.5f; >]',
    "escapes.pbtxt": rb'costs { name: "\141\x62\u0063\303\244" cost_us: -.5 }',
    "utf8.pbtxt": 'costs { name: "ä" cost_us: inf } costs { cost_us: -NaN }'.encode(),
    "latencies.pbtxt": b'costs { name: "a" cost_us: 1 } latencies { source: "a" }',
    "binary.pb": b"\n\x0c\n\x01a\x11\x00\x00\x00\x00\x00\x00\xf0?",
}
REFUSED = {
    "unknown_field.pbtxt": b'costs { name: "a" cost_ns: 1 }',
    "syntax.pbtxt": b'costs { name: "a" cost_us: 1',
    "bom.pbtxt": b"\xef\xbb\xbfcosts { }",
    "binary.pbtxt": ACCEPTED["binary.pb"],
    "text.pb": b'costs { name: "a" cost_us: 1 }',
    "truncated.pb": ACCEPTED["binary.pb"][:-3],
    "suffix.txt": b'costs { name: "a" cost_us: 1 }',
    "upper.PBTXT": b'costs { name: "a" cost_us: 1 }',
    "plus.pbtxt": b"costs { cost_us: +5 }",
    "underscore.pbtxt": b"costs { cost_us: 1_000 }",
    "octal.pbtxt": b"costs { cost_us: 010 }",
    "hexadecimal.pbtxt": b"costs { cost_us: 0x10 }",
    "inff.pbtxt": b"costs { cost_us: inff }",
    "blank.pbtxt": "costs {\u00a0}".encode(),
    "escape.pbtxt": rb'costs { name: "\q" }',
    "newline.pbtxt": b'costs { name: "a\nb" }',
    "twice.pbtxt": b'costs { name: "a" name: "b" }',
    "colon.pbtxt": b'costs { name "a" }',
    "invalid_utf8.pb": b"\n\x03\n\x01\xff",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    dump = Path(__file__).parent.parent.parent / "testdata/pax_fsdp4/proc0/dump"
    text = tmp_path_factory.mktemp("target") / "target.pbtxt"
    text.write_bytes(read_bytes(min(dump.glob("*gpu_target_config.pbtxt.xz"))))
    return text


def compile_with(
    profiles: list[Path], program: str, folder: Path, target: Path
) -> dict[str, str]:
    """XLA's log by profile name."""
    folder.mkdir()
    flags = [
        "gpu_enable_latency_hiding_scheduler=true",
        f"dump_to={folder}",
        "dump_latency_hiding_schedule=true",
    ]
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("XLA_", "TF_CPP_", "JAX_"))
    }
    environment = kept | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "XLA_FLAGS": " ".join(f"--xla_{flag}" for flag in flags),
    }
    child = Path(__file__).with_name("compile_with_profiles.py")
    arguments = [sys.executable, child, program, folder, target, *profiles]
    done = subprocess.run(
        [*map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parts = re.split(r"^PROFILE (.+)\n", done.stderr, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def believed(
    tmp_path_factory, target
) -> dict[str, tuple[Profile, str, dict[str, float]]]:
    """By case: the profile, the module's fingerprint, and the cost LHS believed for A and B."""
    folder = tmp_path_factory.mktemp("values")
    paths = []
    for case, costs in VALUES.items():
        paths.append(folder / f"{case}.pbtxt")
        paths[-1].write_text(
            "".join(
                f'costs {{ name: "{name}" cost_us: {cost} }}\n' for name, cost in costs
            )
        )
    compile_with(paths, "products", folder / "dump", target)
    fingerprint = (folder / "dump/fingerprint").read_text()
    found = {}
    for path in paths[1:]:
        dump = read_schedule_dump(folder / f"dump/{path.name}.schedule.txt")
        slots = {
            name: slot
            for schedule in dump.computations.values()
            for name, slot in schedule.slots.items()
        }
        found[path.stem] = (
            read_profile(path),
            fingerprint,
            {name: slots[name].cycles for name in (A, B)},
        )
    return found


@pytest.mark.parametrize("case", list(VALUES)[1:])
def test_effective_costs_are_what_lhs_believes(case, believed):
    profile, fingerprint, costs = believed[case]
    effective = effective_costs(profile, fingerprint)
    for name in (A, B):
        assert math.isclose(
            effective[name].cost_us, costs[name], rel_tol=1e-9, abs_tol=1e-9
        )


@pytest.fixture(scope="module")
def logs(tmp_path_factory, target) -> dict[str, str]:
    """XLA's log by name of the profile file."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for name, data in {**ACCEPTED, **REFUSED}.items():
        paths.append(folder / name)
        paths[-1].write_bytes(data)
    return compile_with(paths, "sum", folder / "dump", target)


@pytest.mark.parametrize("name", ACCEPTED)
def test_we_read_what_xla_reads(name, logs, tmp_path):
    assert "using profile guided latency estimator" in logs[name]
    (tmp_path / name).write_bytes(ACCEPTED[name])
    assert len(read_profile(tmp_path / name))


@pytest.mark.parametrize("name", REFUSED)
def test_we_refuse_what_xla_refuses(name, logs, tmp_path):
    assert "using profile guided latency estimator" not in logs[name]
    (tmp_path / name).write_bytes(REFUSED[name])
    with pytest.raises(UserError):
        read_profile(tmp_path / name)
