from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace.nsys.ranges import (
    RangeKind,
    kernel_instruction,
    module_key,
    range_kind,
    thunk_instruction,
)
from pgle.trace.table import ModuleKey

HLO_NAMES = st.text(alphabet="aZ09._-", min_size=1, max_size=20)
FRAMEWORK_NAMES = st.text(alphabet="abz,()=[]# _/'", max_size=30)


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("Thunk:#hlo_op=loop_add_fusion.1#", "loop_add_fusion.1"),
        (
            "Thunk:#name=jit(f)/reduce_sum[axes=(0,)],hlo_op=all-reduce-start#",
            "all-reduce-start",
        ),
        ("Thunk:#name=a,hlo_op=not_this,b,hlo_op=x.30,unique_hlo_op_id=77#", "x.30"),
        ("Thunk:#hlo_op=X.1,unique_hlo_op_id=1#", "X.1"),
        ("Thunk:#hlo_op=#", None),
        ("Thunk:#name=only a framework name#", None),
        ("Thunk:#unique_hlo_op_id=3#", None),
    ],
)
def test_the_instruction_of_a_thunk(text: str, instruction: str | None) -> None:
    assert thunk_instruction(text) == instruction


@given(FRAMEWORK_NAMES, HLO_NAMES, st.none() | st.integers(0, 10**6))
def test_any_framework_name_may_stand_before_the_instruction(
    framework: str, name: str, unique: int | None
) -> None:
    tail = "" if unique is None else f",unique_hlo_op_id={unique}"
    assert thunk_instruction(f"Thunk:#name={framework},hlo_op={name}{tail}#") == name


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("XlaModule:#hlo_module=jit_f,program_id=3#", ModuleKey("jit_f", 3)),
        (
            "XlaModule:#prefix=args[0],hlo_module=jit_f,program_id=3#",
            ModuleKey("jit_f", 3),
        ),
        (
            "XlaModule:#hlo_module=gemm_fusion_dot.262#",
            ModuleKey("gemm_fusion_dot.262", None),
        ),
        ("XlaModule:#hlo_module=jit_f,program_id=many#", ModuleKey("jit_f", None)),
        (
            "XlaModule:#hlo_module=jit_f,program_id=99999999999999999999999#",
            ModuleKey("jit_f", None),
        ),
        ("XlaModule:#program_id=3#", None),
    ],
)
def test_the_module_of_a_range(text: str, key: ModuleKey | None) -> None:
    assert module_key(text) == key


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Thunk:#hlo_op=a#", RangeKind.THUNK),
        ("XlaModule:#hlo_module=a#", RangeKind.MODULE),
        ("XlaAutotunerMeasurement:#hlo_op=a#", RangeKind.COMPILE),
        ("XlaPassPipeline:#name=a#", RangeKind.COMPILE),
        ("ncclGroupEnd", None),
        ("my Thunk:#hlo_op=a#", None),
    ],
)
def test_the_kind_of_a_range(text: str, kind: RangeKind | None) -> None:
    assert range_kind(text) is kind


@pytest.mark.parametrize(
    ("kernel", "instruction"),
    [
        ("loop_mul_fusion_20", "loop_mul_fusion.20"),
        ("input_reduce_fusion_1_2", "input_reduce_fusion.1.2"),
        ("fusion", "fusion"),
        ("wrapped_convert_3", "wrapped_convert.3"),
        ("ampere_sgemm_128x64_tn", None),
        ("ncclDevKernel_AllGather_RING_LL", None),
    ],
)
def test_kernels_of_xla_carry_their_fusion(
    kernel: str, instruction: str | None
) -> None:
    assert kernel_instruction(kernel) == instruction
