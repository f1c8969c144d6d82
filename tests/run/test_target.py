"""The GPU of a dump: what says it, and what contradicts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.requests.predictions import Rehearse
from pgle.run.rehearse_program import understood
from pgle.run.target import dump_in, gpu_of, target_named_by
from pgle.xla.targets import load_target

FOR_A100 = "module_0001.jit_step.sm_8.0_gpu_after_optimizations.txt"


def test_the_name_of_a_dump_says_its_gpu() -> None:
    found = gpu_of(FOR_A100)
    assert (found.hardware.name, found.by, found.doubt) == (
        "a100-40gb",
        "file name",
        "",
    )


def test_a_trace_says_the_gpu_if_the_dump_does_not() -> None:
    ampere = load_target("a100").architecture
    found = gpu_of("", None, ampere)
    assert (found.hardware.name, found.by) == ("a100-40gb", "trace")
    assert gpu_of(FOR_A100, None, load_target("h100").architecture).by == "file name"
    assert gpu_of("", load_target("h100"), ampere).doubt
    assert gpu_of("").by == "nothing"


def test_a_target_of_another_generation_is_doubted() -> None:
    assert "sm_8.0" in gpu_of(FOR_A100, load_target("h100")).doubt
    assert gpu_of(FOR_A100, load_target("a100-80")).doubt == ""
    assert gpu_of("step.mlir", load_target("h100")).doubt == ""


def test_a_description_counts_before_the_name(tmp_path: Path) -> None:
    described = load_target("b200").text
    (tmp_path / "module_0001.jit_step.gpu_target_config.pbtxt").write_text(described)
    found = gpu_of(str(tmp_path / FOR_A100), load_target("a100"))
    assert "sm_10.0" in found.doubt
    assert target_named_by(str(tmp_path / FOR_A100)).startswith("b200")


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_rehearsal_of_a_dump_takes_its_gpu(tmp_path: Path, is_folder: bool) -> None:
    dump = tmp_path / FOR_A100
    dump.touch()
    given = str(tmp_path if is_folder else dump)
    assert understood(Rehearse(given)).target == "a100-40gb"
    assert dump_in(Path(given)) == str(dump)
    (doubt,) = understood(Rehearse(given, target="h100")).doubts
    assert "another generation" in doubt


def test_a_module_that_says_no_gpu_is_rehearsed_for_an_h100(tmp_path: Path) -> None:
    (tmp_path / "step.mlir").touch()
    assert understood(Rehearse(tmp_path / "step.mlir")).target == "h100"
