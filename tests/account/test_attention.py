"""Attention that is not fused is found by what it computes, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from priced import estimated, lever_of, priced

from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, OpportunityKind
from pgle.costs.estimate.attention import AttentionWork, call_us, fused_us
from pgle.costs.estimate.products import attention_work
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import find_hardware

PAX = Path(__file__).parents[2] / "testdata/pax_fsdp4/proc0/dump"
PAX_STEP = "module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"

REDUCERS = """
max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b) }

sum { c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT t = f32[] add(c, d) }
"""

SOFTMAX = """
softmax { scores = f32[48,2048,2048] parameter(0)
  none = f32[] constant(-inf)
  highest = f32[48,2048] reduce(scores, none), dimensions={2}, to_apply=max
  wide = f32[48,2048,2048] broadcast(highest), dimensions={0,1}
  below = f32[48,2048,2048] subtract(scores, wide)
  e = f32[48,2048,2048] exponential(below)
  zero = f32[] constant(0)
  total = f32[48,2048] reduce(e, zero), dimensions={2}, to_apply=sum
  wide_total = f32[48,2048,2048] broadcast(total), dimensions={0,1}
  weight = f32[48,2048,2048] divide(e, wide_total)
  ROOT half = bf16[48,2048,2048] convert(weight) }
"""

CAUSAL = """
masked { product = f32[48,2048,2048] parameter(0)
  row = s32[2048,2048] iota(), iota_dimension=0
  column = s32[2048,2048] iota(), iota_dimension=1
  seen = pred[2048,2048] compare(row, column), direction=GE
  wide_seen = pred[48,2048,2048] broadcast(seen), dimensions={1,2}
  low = f32[] constant(-1e9)
  lows = f32[48,2048,2048] broadcast(low), dimensions={}
  ROOT kept = f32[48,2048,2048] select(wide_seen, product, lows) }
"""

ATTENTION = f"""HloModule jit_step, is_scheduled=true
{REDUCERS}{SOFTMAX}{CAUSAL}
ENTRY main {{
  q = bf16[48,2048,64] parameter(0)
  k = bf16[48,2048,64] parameter(1)
  v = bf16[48,2048,64] parameter(2)
  qk = f32[48,2048,2048] dot(q, k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}, metadata={{op_name="layer_3/qk"}}
  mask = f32[48,2048,2048] fusion(qk), kind=kLoop, calls=masked
  p = bf16[48,2048,2048] fusion(mask), kind=kInput, calls=softmax
  ROOT pv = bf16[48,2048,64] dot(p, v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
    lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}
}}
"""

KERNELS = {"qk": 400.0, "mask": 800.0, "p": 900.0, "pv": 300.0}


def attention(step: StepCosts) -> Opportunity | None:
    return lever_of(step, OpportunityKind.ATTENTION)


def test_attention_in_four_kernels_is_replaced_by_one() -> None:
    found = attention(priced(ATTENTION, KERNELS))
    assert found is not None
    assert found.instructions == set(KERNELS)
    # 4 · 48 · 2,048² · 64 operations, half of them masked, at 50 to 73 % of 312 TFLOP/s
    operations = 2 * 48 * 2048**2 * 64
    assert 2400 - found.least_us == pytest.approx(operations / (0.5 * 312e6))
    assert 2400 - found.most_us == pytest.approx(operations / (0.73 * 312e6))
    assert "is_causal=True" in found.code
    assert found.where[0].instruction == "p"


CALLED = """FileNames
1 "/env/site-packages/flax/linen/attention.py"
2 "/src/model.py"

FunctionNames
1 "attend"
2 "block"

FileLocations
1 {file_name_id=1 function_name_id=1 line=132 end_line=132 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=8 end_line=8 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=2}
2 {file_location_id=2 parent_frame_id=2}

"""


def test_attention_of_a_library_is_at_the_program_s_line_with_its_result() -> None:
    of_result = ', metadata={op_name="attend/pv" stack_frame_id=1}\n}\n'
    head, _, rest = ATTENTION.partition("\n")
    text = head + "\n\n" + CALLED + rest.rstrip().removesuffix("}").rstrip() + of_result
    found = attention(priced(text, KERNELS))
    assert found is not None
    assert found.line == "model.py:8"


def test_a_kernel_that_only_moves_the_keys_may_go_too() -> None:
    moved = ATTENTION.replace(
        "  qk = f32", "  turned = bf16[48,2048,64] copy(k)\n  qk = f32"
    ).replace("dot(q, k)", "dot(q, turned)")
    plain = attention(priced(ATTENTION, KERNELS))
    found = attention(priced(moved, {**KERNELS, "turned": 50.0}))
    assert plain is not None
    assert found is not None
    assert found.expected_us == plain.expected_us
    assert found.most_us == plain.most_us + 50.0


def test_a_mask_that_compares_segments_leaves_all_the_work() -> None:
    iota = "row = s32[2048,2048] iota(), iota_dimension=0"
    text = ATTENTION.replace(iota, "row = s32[2048,2048] parameter(1)")
    text = text.replace("fusion(qk)", "fusion(qk, of_row)").replace("=GE", "=EQ")
    given = "  of_row = s32[2048,2048] parameter(3)\n  v = bf16"
    segments = attention(priced(text.replace("  v = bf16", given), KERNELS))
    causal = attention(priced(ATTENTION, KERNELS))
    assert segments is not None
    assert causal is not None
    assert 2400 - segments.most_us == pytest.approx(2 * (2400 - causal.most_us))
    assert "is_causal" not in segments.code


SEEN = "  seen = pred[2048,2048] compare(row, column), direction=GE\n"
APART = """
  apart = s32[2048,2048] subtract(row, column)
  nothing = s32[] constant(0)
  nothings = s32[2048,2048] broadcast(nothing), dimensions={}
  length = s32[] constant(256)
  lengths = s32[2048,2048] broadcast(length), dimensions={}
  before = pred[2048,2048] compare(apart, nothings), direction=GE
"""
NEAR = "  near = pred[2048,2048] compare(apart, lengths), direction=LT\n"
BOTH = "  seen = pred[2048,2048] and(before, near)\n"
WINDOW = ATTENTION.replace(SEEN, APART + NEAR + BOTH)


def test_a_window_leaves_the_work_of_its_keys() -> None:
    found = attention(priced(WINDOW, KERNELS, gpu="h100"))
    assert found is not None
    work = AttentionWork(48, 2048, 2048, 64, causal=False, back=False, window=256)
    fused = fused_us(find_hardware("h100"), work)
    assert 2400 - found.expected_us == pytest.approx(fused.likely)
    assert "local_window_size=(255, 0), is_causal=True" in found.code
    assert "mask=" not in found.code


def test_a_distance_that_is_not_negative_is_causal() -> None:
    seen = "  seen = pred[2048,2048] copy(before)\n"
    other = attention(priced(ATTENTION.replace(SEEN, APART + seen), KERNELS))
    causal = attention(priced(ATTENTION, KERNELS))
    assert other is not None
    assert causal is not None
    assert (other.expected_us, other.code) == (causal.expected_us, causal.code)


def test_a_prefix_that_all_queries_see_leaves_all_the_work() -> None:
    prefix = """
  prefix = pred[2048,2048] compare(column, lengths), direction=LT
  seen = pred[2048,2048] or(before, prefix)
"""
    other = attention(priced(ATTENTION.replace(SEEN, APART + prefix), KERNELS))
    causal = attention(priced(ATTENTION, KERNELS))
    assert other is not None
    assert causal is not None
    assert 2400 - other.most_us == pytest.approx(2 * (2400 - causal.most_us))
    assert "mask=mask" in other.code and "is_causal" not in other.code


def test_a_window_next_to_a_mask_of_data_is_part_of_the_mask() -> None:
    text = WINDOW.replace(
        "  ROOT kept = f32[48,2048,2048] select(wide_seen, product, lows) }",
        """  some = f32[48,2048,2048] select(wide_seen, product, lows)
  shown = pred[48,2048,2048] parameter(1)
  ROOT kept = f32[48,2048,2048] select(shown, some, lows) }""",
    ).replace("fusion(qk)", "fusion(qk, shown)")
    given = "  shown.1 = pred[48,2048,2048] parameter(3)\n  v = bf16"
    text = text.replace("  v = bf16", given).replace("(qk, shown)", "(qk, shown.1)")
    found = attention(priced(text, KERNELS))
    assert found is not None
    assert "mask=mask" in found.code and "local_window_size" not in found.code


def test_a_mask_of_earlier_keys_is_not_causal() -> None:
    later = attention(priced(ATTENTION.replace("=GE", "=LE"), KERNELS))
    causal = attention(priced(ATTENTION, KERNELS))
    swapped = ATTENTION.replace("compare(row, column)", "compare(column, row)")
    same = attention(priced(swapped.replace("=GE", "=LE"), KERNELS))
    assert later is not None
    assert causal is not None
    assert same is not None
    assert "is_causal" not in later.code
    assert "mask=mask" in later.code
    assert 2400 - later.most_us == pytest.approx(2 * (2400 - causal.most_us))
    assert (same.code, same.most_us) == (causal.code, causal.most_us)


def test_a_mask_that_hides_where_it_is_true_is_read_so() -> None:
    hiding = ATTENTION.replace("=GE", "=LT")
    hiding = hiding.replace("wide_seen, product, lows", "wide_seen, lows, product")
    found = attention(priced(hiding, KERNELS))
    causal = attention(priced(ATTENTION, KERNELS))
    assert found is not None
    assert causal is not None
    assert (found.code, found.most_us) == (causal.code, causal.most_us)


PADDED = """masked { product = f32[48,2048,2048] parameter(0)
  real = pred[48,2048] parameter(1)
  wide_seen = pred[48,2048,2048] broadcast(real), dimensions={0,2}
"""

Case = tuple[dict[str, str], tuple[str, ...]]

PADDING: Case = (
    {
        CAUSAL[: CAUSAL.index("  low =")]: PADDED,
        "fusion(qk)": "fusion(qk, padding)",
    },
    ("(q, k, v, mask=mask, scale=scale, impl",),
)
CAUSAL_AND_PADDING: Case = (
    {
        "  wide_seen =": "  real = pred[2048,2048] parameter(1)\n"
        "  both = pred[2048,2048] and(seen, real)\n  wide_seen =",
        "broadcast(seen)": "broadcast(both)",
        "fusion(qk)": "fusion(qk, padding)",
    },
    ("(q, k, v, mask=mask, scale=scale, impl", "Add is_causal=True if"),
)
BIAS: Case = (
    {
        "ROOT kept": "kept",
        "product, lows) }": "product, lows)\n  more = f32[48,2048,2048] parameter(1)\n"
        "  ROOT biased = f32[48,2048,2048] add(kept, more) }",
        "fusion(qk)": "fusion(qk, bias)",
    },
    ("(q, k, v, bias=bias, scale=scale, is_causal=True, impl",),
)
SOFT_CAP: Case = (
    {
        "ROOT kept": "kept",
        "product, lows) }": "product, lows)\n"
        "  ROOT capped = f32[48,2048,2048] tanh(kept) }",
    },
    ("cuDNN's call in jax.nn has no soft cap",),
)
DROPOUT: Case = (
    {
        "convert(weight)": "convert(left)",
        "  ROOT half": "  keep = f32[48,2048,2048] parameter(1)\n"
        "  left = f32[48,2048,2048] multiply(weight, keep)\n  ROOT half",
        "fusion(mask)": "fusion(mask, bias)",
    },
    ("(q, k, v, scale=scale, is_causal=True, impl", "with attention's dropout off"),
)
NOTHING: Case = ({}, ("(q, k, v, scale=scale, is_causal=True, impl",))

OWN = {
    "padding": PADDING,
    "causal and padding": CAUSAL_AND_PADDING,
    "bias": BIAS,
    "soft cap": SOFT_CAP,
    "dropout": DROPOUT,
    "nothing": NOTHING,
}


@pytest.mark.parametrize("case", OWN)
def test_an_edit_names_what_the_program_does_to_its_scores(case: str) -> None:
    changed, said = OWN[case]
    text = ATTENTION
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    given = (
        "  padding = pred[48,2048] parameter(3)\n"
        "  bias = f32[48,2048,2048] parameter(4)\n  qk = f32"
    )
    found = attention(priced(text.replace("  qk = f32", given), KERNELS))
    assert found is not None
    written = f"{found.edit} {found.code}"
    assert [words for words in said if words not in written] == []
    assert ("without its dropout" in found.title) == (case == "dropout")
    assert ("dropout" in found.edit) == (case == "dropout")


def test_products_with_weights_are_a_layer_and_no_attention() -> None:
    text = ATTENTION.replace("[48,", "[").replace("batch_dims={0}", "batch_dims={}")
    text = text.replace("contracting_dims={2}", "contracting_dims={1}")
    text = text.replace("rhs_contracting_dims={1}\n}", "rhs_contracting_dims={0}\n}")
    text = text.replace("dimensions={2}", "dimensions={1}")
    text = text.replace("dimensions={0,1}", "dimensions={0}")
    assert attention(priced(text.replace("={1,2}", "={0,1}"), KERNELS)) is None


def test_a_loss_over_a_vocabulary_is_no_attention() -> None:
    """Its second product computes a gradient."""
    gradient = ATTENTION.replace(
        "rhs_contracting_dims={1}\n}",
        'rhs_contracting_dims={1}, metadata={op_name="transpose(jvp())/dot"}\n}',
    )
    assert gradient != ATTENTION
    assert attention(priced(gradient, KERNELS)) is None


def test_products_without_a_softmax_are_no_attention() -> None:
    linear = ATTENTION.replace("exponential(below)", "logistic(below)")
    assert attention(priced(linear, KERNELS)) is None


def test_heads_that_no_fused_kernel_takes_are_left() -> None:
    assert attention(priced(ATTENTION.replace(",64]", ",160]"), KERNELS)) is None


def test_attention_of_a_real_job_is_found_layer_by_layer() -> None:
    step = estimated(PAX / PAX_STEP, "a100-40gb")
    found = attention(step)
    assert found is not None
    assert "x_layers_" in found.where[0].op_name
    names = {step.module.instructions[name].op_name for name in found.instructions}
    layers = {name.partition("x_layers_")[2].partition("/")[0] for name in names}
    assert {str(number) for number in range(12)} <= layers
    outside = [name for name in names if "self_attention" not in name and name]
    assert outside == []


def test_a_fused_kernel_does_the_work_that_an_estimate_of_cudnn_counts() -> None:
    call = """HloModule m
ENTRY main {
  q = bf16[4,2048,12,64] parameter(0)
  ROOT o = (bf16[4,12,2048,64], u8[0]) custom-call(q, q, q),
    custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config":
    {"intermediate_tensor_shape": {"dimensions": ["4","12","2048","2048"]},
    "mask_type": "NO_MASK"}}
}
"""
    module = module_from_text(call.encode(), "m.txt")
    work = attention_work(module, module.instructions["o"])
    edit = AttentionWork(48, 2048, 2048, 64, causal=False, back=False)
    assert work == edit
    a100 = find_hardware("a100-40gb")
    assert fused_us(a100, edit).likely == call_us(a100, edit).likely
    assert fused_us(a100, edit).least == pytest.approx(edit.operations / (0.73 * 312e6))


@pytest.mark.parametrize(
    ("length", "causal", "back", "measured_ms"),
    [
        (2048, True, False, 0.257),
        (2048, True, True, 0.856),
        (8192, True, False, 3.357),
        (8192, True, True, 10.448),
        (8192, False, True, 19.572),
    ],
)
def test_a_call_on_hopper_takes_what_nvidia_has_measured(
    length: int, causal: bool, back: bool, measured_ms: float
) -> None:
    """Two sequences of 64 heads of 128 (NVIDIA/cudnn-frontend, as the table cites)."""
    work = AttentionWork(2 * 64, length, length, 128, causal, back)
    call = call_us(find_hardware("h200"), work)
    assert call.likely == pytest.approx(1000 * measured_ms, rel=0.01)


def test_a_head_with_one_query_keeps_one_multiprocessor_busy() -> None:
    """So eight heads take as long as sixty-four on a GPU with more multiprocessors than that."""
    h100 = find_hardware("h100-sxm")
    times = {
        heads: call_us(
            h100, AttentionWork(heads, 1, 131_072, 128, causal=False, back=False)
        )
        for heads in (8, 64)
    }
    assert times[8].likely == pytest.approx(times[64].likely, rel=0.01)
    assert times[8].least < times[8].likely / 5  # a kernel that splits the keys


def test_a_window_costs_the_tiles_that_it_touches() -> None:
    """Queries of a tile of 128 see up to 128 keys more than one query does."""
    work = AttentionWork(64, 4096, 4096, 128, causal=False, back=True, window=129)
    whole = AttentionWork(64, 4096, 4096, 128, causal=False, back=True)
    assert work.operations == whole.operations * 129 / 4096
    assert work.executed == whole.executed * 257 / 4096
