"""What `pgle verify` says of a profile, and what the installed XLA says when it compiles with it.
No GPU.
"""

import io
import re
from pathlib import Path
from types import ModuleType

import pytest

from pgle.costs.profile.coverage import cover, estimate_profile
from pgle.costs.profile.value import Cost, Profile
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.log.read import collect, read_events
from pgle.xla.log.verdict import judge
from pgle.xla.targets import find_hardware

pytestmark = [pytest.mark.rehearse, pytest.mark.slow]


def test_costs_of_a_synchronous_profile_run_are_found_as_foretold(
    record: ModuleType, live_dumps: Path
) -> None:
    (profiled,) = read_modules(live_dumps / "sync")
    modules = [
        module
        for module in read_modules(live_dumps / "async")
        if module.name == "jit_step"
    ]
    lhs_modules = {
        name: read_module(path)
        for name, path in find_schedule_dumps(live_dumps / "async").items()
    }
    profile = estimate_profile(profiled, find_hardware("a100-40gb"))

    main = cover(profile, modules, lhs_modules).modules[0]
    log = record.child(
        "step", [record.LHS], [" ".join(cost.name for cost in profile.costs)]
    )

    assert (main.count.value, main.collectives.value) == (1, 1)
    assert main.gaps == ()
    missing = re.findall(r"profile_guided_latency_estimator\.cc:\d+\]   (\S+)", log)
    assert all("-done" in name or "compare" in name for name in missing), missing


def test_confirm_counts_as_verify_does(record: ModuleType, tmp_path: Path) -> None:
    """XLA counts otherwise; one asynchronous fusion (of newer XLA) has a cost, and so has a loop
    condition.
    """
    names = [
        "gemm_fusion_dot.9",
        "all-gather-start",
        "fusion-start",
        "loop_compare_fusion",
    ]
    dump = [
        "--xla_dump_hlo_as_proto",
        "--xla_dump_latency_hiding_schedule=true",
        f"--xla_dump_to={tmp_path}",
    ]
    log = record.child("step", [record.LHS, *dump], [" ".join(names)])
    schedule = read_schedule_dump(find_schedule_dumps(tmp_path)["jit_step"])
    profile = Profile(tuple(Cost(name, 7.0) for name in names))

    count = (
        cover(profile, [schedule.module], {"jit_step": schedule.module})
        .modules[0]
        .count
    )
    main = judge(collect(read_events(io.BytesIO(log.encode())))).main

    assert main.covered == count.covered
    assert (
        main.wanted == count.total + 1
    )  # the other loop condition: no line of the log says that it is one


def test_the_done_of_an_asynchronous_fusion_takes_what_the_profile_says(
    record: ModuleType, live_dumps: Path, tmp_path: Path
) -> None:
    """1 µs without a cost; so it needs none, and must not have one."""
    if not any(
        item.name.startswith("fusion-done")
        for item in read_modules(live_dumps / "async")[0].walk()
    ):
        pytest.skip("this XLA makes no asynchronous fusion of the program")

    def believed(name: str, cost_us: float) -> dict[str, float]:
        folder = tmp_path / f"{name}.{cost_us}"
        profile = tmp_path / "profile.pbtxt"
        profile.write_text(f'costs {{ name: "{name}" cost_us: {cost_us} }}\n')
        path = f"--xla_gpu_pgle_profile_file_or_directory_path={profile}"
        dump = [
            "--xla_dump_hlo_as_proto",
            "--xla_dump_latency_hiding_schedule=true",
            f"--xla_dump_to={folder}",
        ]
        record.child("step", [record.LHS, *dump, path])
        schedule = read_schedule_dump(find_schedule_dumps(folder)["jit_step"])
        return {
            name: slot.cycles
            for item in schedule.computations.values()
            for name, slot in item.slots.items()
        }

    plain = believed("no-such-name", 1)
    dones = [name for name in plain if name.startswith("fusion-done")]
    start = dones[0].replace("done", "start")
    assert plain[dones[0]] == plain[start] == 1
    assert believed(dones[0], 100)[dones[0]] == pytest.approx(100)
    assert believed(start, 100)[start] == pytest.approx(
        100
    )  # under the start's name a cost is compute too
