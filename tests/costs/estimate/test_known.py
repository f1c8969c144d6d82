"""Of each instruction one place says whether its cost is a model, a bound only, or unknown; every
answer follows.
"""

from dataclasses import replace

import pytest

from pgle.costs.estimate.known import Basis, basis_of, estimates, unmodelled_warnings
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.predict import predict
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import TABLE

H100 = TABLE["h100-sxm"]
SQUARE = Shape("f32", (2048, 2048))
X = Instruction("x", "parameter", SQUARE, "e", parameter_number=0)


def call(target: str, **more: int) -> Instruction:
    return Instruction(
        "c", "custom-call", SQUARE, "e", ("x",), custom_call_target=target, **more
    )


def module(item: Instruction, **fused: tuple[Instruction, ...]) -> Module:
    computations = {"e": Computation("e", (X, item), item.name)}
    for name, inner in fused.items():
        computations[name] = Computation(name, inner, inner[-1].name, True)
    return Module("m", 1, "", "e", computations, True)


@pytest.mark.parametrize(
    ("target", "basis"),
    [
        ("__cublas$gemm", Basis.MODEL),
        ("xla.gpu.ext.cub_sort_keys", Basis.MODEL),
        ("__gpu$TopK", Basis.MODEL),
        ("cusolver_syevd_ffi", Basis.BOUND),
        ("__cublas$triangularSolve", Basis.BOUND),
        ("__gpu$xla.gpu.triton", Basis.UNKNOWN),
        ("xla_ffi_python_gpu_callback", Basis.UNKNOWN),
    ],
)
def test_what_a_custom_call_is_known_by(target: str, basis: Basis) -> None:
    item = call(target)
    assert basis_of(module(item), item) is basis


def test_the_program_may_state_the_cost_of_any_call() -> None:
    item = call("mine", latency_ns=5000)
    assert estimates(module(item), H100)(item).most_us == 5.0


def test_a_call_inside_a_fusion_is_not_known_either() -> None:
    inner = Instruction("p", "parameter", SQUARE, "f", parameter_number=0)
    mine = replace(call("mine"), computation="f", operands=("p",))
    fusion = Instruction(
        "fusion", "fusion", SQUARE, "e", ("x",), called=("f",), fusion_kind="kCustom"
    )
    of = module(fusion, f=(inner, mine))
    assert basis_of(of, fusion) is Basis.UNKNOWN
    assert (
        predict(of, None, H100).lower_bound_why
        == "no cost is known for the custom call mine"
    )


@pytest.mark.parametrize("target", ["mine", "cusolver_syevd_ffi"])
def test_a_step_without_a_model_of_each_cost_is_a_lower_bound_without_an_upper_end(
    target: str,
) -> None:
    found = predict(module(call(target)), None, H100)
    assert found.lower_bound
    assert found.interval_us[1] == float("inf")
    assert target in found.lower_bound_why


def test_a_measured_call_has_a_range() -> None:
    found = predict(module(call("mine")), Profile((Cost("c", 300.0),)), H100)
    assert not found.lower_bound
    assert found.interval_us[1] < 400


def test_warnings_tell_a_bound_from_no_knowledge() -> None:
    (unknown,) = unmodelled_warnings(module(call("mine")), ())
    (bound,) = unmodelled_warnings(module(call("cusolver_getrf_ffi")), ())
    assert unknown.startswith("no cost is known for custom calls (mine × 1)")
    assert bound.startswith(
        "only a bound is known for linear algebra (cusolver_getrf_ffi × 1)"
    )
