"""Combine thresholds computed from modules."""

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.xla.flags.thresholds import MIB, combine_thresholds
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.hlo.reader import read_module

TESTDATA = Path(__file__).parents[3] / "testdata"
PAX = TESTDATA / "pax_fsdp4/proc3/dump"
STEP = "module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"


def module(*instructions, loop=False):
    body = Computation("body", tuple(instructions), "root")
    loops = (Instruction("loop", "while", Shape("tuple"), "main", called=("cond", "body")),) if loop else ()
    main = Computation("main", loops, "loop")
    return Module("m", 1, "", "main" if loop else "body", {"body": body, "main": main}, True)


def gather(name, rows, opcode="all-gather"):
    return Instruction(name, opcode, Shape("f32", (rows, 262144)), "body")  # a MiB for each row


def only(*instructions, loop=False):
    (found,) = combine_thresholds(module(*instructions, loop=loop)).thresholds
    return found


def test_a_loop_body_is_a_layer():
    found = only(gather("a", 2), gather("b", 3), loop=True)
    assert (found.layer_bytes, found.layers, found.how) == (5 * MIB, 1, "2 tensors in the loop body body")


def test_shapes_that_occur_equally_often_are_a_layer():
    weights = [gather(f"{kind}{layer}", rows) for layer in range(3) for kind, rows in (("a", 2), ("b", 4))]
    found = only(*weights, gather("embedding", 100))
    assert (found.layer_bytes, found.layers) == (6 * MIB, 3)


def test_a_shape_that_occurs_twice_in_a_layer_counts_twice():
    weights = [gather(f"{kind}{layer}", rows) for layer in range(3) for kind, rows in (("a", 2), ("b", 2), ("c", 4))]
    weights += [gather(f"d{layer}", 8) for layer in range(3)]
    assert only(*weights).layer_bytes == (2 + 2 + 4 + 8) * MIB


def test_without_repetition_the_whole_module_counts():
    found = only(gather("a", 2), gather("b", 3))
    assert (found.layer_bytes, found.layers) == (5 * MIB, 0)


def test_combined_collectives_are_taken_apart():
    shape = Shape("tuple", elements=(Shape("f32", (2, 262144)), Shape("f32", (2, 262144))))
    found = only(Instruction("a", "all-gather", shape, "body"))
    assert (found.layer_bytes, found.layers) == (2 * MIB, 2)


def test_thresholds_are_rounded_up_to_whole_mebibytes():
    found = only(Instruction("a", "reduce-scatter", Shape("f32", (262145,)), "body"))
    assert found.flag.text == f"--xla_gpu_reduce_scatter_combine_threshold_bytes={2 * MIB}"


def test_tiny_collectives_are_left_alone():
    result = combine_thresholds(module(gather("a", 1), Instruction("loss", "all-reduce", Shape("f32"), "body")))
    assert [item.kind for item in result.thresholds] == ["all-gather"]
    assert result.remarks[0] == "all-reduces return only 4 bytes: leave their threshold alone"


def test_a_real_language_model_has_twelve_layers():
    gathers, scatters = combine_thresholds(read_module(PAX / STEP)).thresholds
    assert (gathers.layers, scatters.layers) == (12, 12)
    # On four devices gathered weights are four times the shards of their gradients, up to one tensor of 1,536 bytes.
    assert gathers.layer_bytes == 4 * scatters.layer_bytes + 1536


def test_a_module_without_collectives_is_refused():
    with pytest.raises(UserError, match="has no all-gather, reduce-scatter or all-reduce"):
        combine_thresholds(module(Instruction("a", "add", Shape("f32"), "body")))
