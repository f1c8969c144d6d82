"""Which collectives move weights and gradients, and which activations of the same sizes."""

from __future__ import annotations

from pgle.scale.answer import exposed_by_collective
from pgle.schedule.predict import predict
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import find_hardware

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=8\n"
SUM = "add {\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n  ROOT s = bf16[] add(a, b)\n}\n"
ALL = "replica_groups={{0,1,2,3,4,5,6,7}}, channel_id=1"
SCATTER = f"{ALL}, dimensions={{0}}, to_apply=add, use_global_device_ids=true"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"

FSDP = f"""
ENTRY e {{
  w = bf16[512,4096] parameter(0)
  x = bf16[4096,4096] parameter(1)
  full = bf16[4096,4096] all-gather(w), {ALL}, dimensions={{0}}, use_global_device_ids=true
  y = bf16[4096,4096] dot(x, full), {DOT}
  part = bf16[512,4096] reduce-scatter(y), {SCATTER}
  ROOT new = bf16[512,4096] subtract(w, part)
}}
"""
TENSOR = f"""
ENTRY e {{
  w = bf16[4096,512] parameter(0)
  v = bf16[512,4096] parameter(1)
  x = bf16[4096,4096] parameter(2)
  a = bf16[4096,512] dot(x, w), {DOT}
  y = bf16[4096,4096] dot(a, v), {DOT}
  part = bf16[512,4096] reduce-scatter(y), {SCATTER}
  full = bf16[4096,4096] all-gather(part), {ALL}, dimensions={{0}}, use_global_device_ids=true
  z = bf16[4096,512] dot(full, w), {DOT}
  ROOT new = (bf16[4096,512], bf16[512,4096]) tuple(z, v)
}}
"""


def weights_shares(text: str) -> dict[str, float]:
    module = module_from_text((HEAD + SUM + text).encode(), "test")
    hardware = find_hardware("h100")
    found = exposed_by_collective(module, predict(module, None, hardware), hardware)
    return {item.kind: item.weights_us / item.exposed_us for item in found}


def test_weights_are_gathered_from_no_product_and_gradients_are_scattered_into_none() -> (
    None
):
    assert weights_shares(FSDP) == {"all-gather": 1, "reduce-scatter": 1}


def test_activations_of_tensor_parallelism_are_no_weights_even_if_they_are_as_large() -> (
    None
):
    assert weights_shares(TENSOR) == {"all-gather": 0, "reduce-scatter": 0}
