"""The order of collectives in a scheduled module, from HLO text."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from pgle.schedule.launch_order import launch_order, launches_in
from pgle.schedule.launches import ANY, COLLECTIVES, MAIN, PAIRS
from pgle.xla.hlo.dumps import read_module

HEAD = """HloModule jit_step, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""
GROUPS = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true"


def order_of(body: str, computations: str = ""):
    """The order of a module whose entry has these lines."""
    lines = "\n".join(f"  {line}" for line in body.strip().splitlines())
    entry = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n{lines}\n}}\n"
    return launches_in(f"{HEAD}{computations}\n{entry}")


def steps(order):
    """``start`` and ``wait`` with the kind of each collective."""
    words = ("start", "wait")
    return [
        f"{words[event % 2]} {order.collectives[event // 2].kind}"
        for event in order.events
    ]


def test_the_start_enters_the_queue_and_the_done_is_waited_for():
    order = order_of(
        f"""
%ags = (f32[8]{{0}}, f32[16]{{0}}) all-gather-start(%p), channel_id=1, {GROUPS}, dimensions={{0}}
%ar = f32[8]{{0}} all-reduce(%p), channel_id=2, {GROUPS}, to_apply=%add
%agd = f32[16]{{0}} all-gather-done(%ags)
ROOT %out = f32[8]{{0}} slice(%agd), slice={{[0:8]}}
"""
    )
    assert steps(order) == [
        "start all-gather",
        "start all-reduce",
        "wait all-reduce",
        "wait all-gather",
    ]
    gather, reduce = order.collectives
    assert (gather.lane, gather.shape, gather.groups) == (
        COLLECTIVES,
        "f32[16]",
        ((0, 1), (2, 3)),
    )
    assert reduce.lane == MAIN


def test_a_generic_start_is_what_it_wraps():
    wrapped = f"""
%wrapped (q: f32[8]) -> f32[16] {{
  %q = f32[8]{{0}} parameter(0)
  ROOT %ag = f32[16]{{0}} all-gather(%q), channel_id=1, {GROUPS}, dimensions={{0}}
}}
"""
    order = order_of(
        """
%s = ((f32[8]{0}), f32[16]{0}) async-start(%p), calls=%wrapped
%d = f32[16]{0} async-done(%s)
ROOT %out = f32[8]{0} slice(%d), slice={[0:8]}
""",
        wrapped,
    )
    assert steps(order) == ["start all-gather", "wait all-gather"]
    assert order.collectives[0].lane == COLLECTIVES


LOOP = f"""
%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %t = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8]{{0}} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %ar = f32[8]{{0}} all-reduce(%x), channel_id=1, {GROUPS}, to_apply=%add
  ROOT %r = (s32[], f32[8]{{0}}) tuple(%next, %ar)
}}

%cond (t: (s32[], f32[8])) -> pred[] {{
  %t = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}
"""
ENTER = """
%zero = s32[] constant(0)
%init = (s32[], f32[8]{0}) tuple(%zero, %p)
%w = (s32[], f32[8]{0}) while(%init), condition=%cond, body=%body
ROOT %out = f32[8]{0} get-tuple-element(%w), index=1
"""


def test_a_loop_counts_as_often_as_it_runs():
    assert steps(order_of(ENTER, LOOP)) == ["start all-reduce", "wait all-reduce"] * 5


def test_a_loop_of_unknown_length_counts_once_and_is_marked():
    order = order_of(ENTER, LOOP.replace("constant(5)", "parameter(1)"))
    assert len(order.starts) == 1
    assert order.is_cut


def test_a_long_loop_is_cut_and_marked():
    order = order_of(ENTER, LOOP.replace("constant(5)", "constant(100000000)"))
    assert order.is_cut


def test_all_branches_of_a_conditional_count_in_their_order():
    branch = """
%{name} (q{name}: f32[8]) -> f32[8] {{
  %q{name} = f32[8]{{0}} parameter(0)
  ROOT %r{name} = f32[8]{{0}} {opcode}(%q{name}), channel_id={channel}, {rest}
}}
"""
    branches = branch.format(
        name="one", opcode="all-reduce", channel=1, rest=f"{GROUPS}, to_apply=%add"
    ) + branch.format(
        name="two",
        opcode="collective-permute",
        channel=2,
        rest="source_target_pairs={{0,1},{1,0}}",
    )
    order = order_of(
        """
%k = s32[] constant(0)
ROOT %c = f32[8]{0} conditional(%k, %p, %p), branch_computations={%one, %two}
""",
        branches,
    )
    assert [item.kind for item in order.collectives] == [
        "all-reduce",
        "collective-permute",
    ]
    assert order.collectives[1].groups == ((0, 1), (1, 0))
    assert order.collectives[1].lane == MAIN


@pytest.mark.parametrize("quoted", ["", '"'], ids=["bare", "quoted"])
def test_send_and_receive_have_the_pairs_of_their_attribute(quoted):
    stated = f"{quoted}{{{{0,1}},{{2,3}}}}{quoted}"
    pairs = f"frontend_attributes={{_xla_send_recv_source_target_pairs={stated}}}"
    order = order_of(
        f"""
%tok = token[] after-all()
%send = (f32[8]{{0}}, u32[], token[]) send(%p, %tok), channel_id=3, {pairs}
%recv = (f32[8]{{0}}, u32[], token[]) recv(%tok), channel_id=3, {pairs}
%sd = token[] send-done(%send), channel_id=3
%rd = (f32[8]{{0}}, token[]) recv-done(%recv), channel_id=3
ROOT %out = f32[8]{{0}} get-tuple-element(%rd), index=0
"""
    )
    assert [(item.kind, item.groups, item.lane) for item in order.collectives] == [
        ("send", ((0, 1), (2, 3)), ANY),
        ("recv", ((0, 1), (2, 3)), ANY),
    ]


def test_transfers_to_the_host_are_no_collectives():
    order = order_of(
        """
%tok = token[] after-all()
%send = (f32[8]{0}, u32[], token[]) send(%p, %tok), channel_id=3, is_host_transfer=true
%sd = token[] send-done(%send), channel_id=3, is_host_transfer=true
ROOT %out = f32[8]{0} copy(%p)
"""
    )
    assert order.events == ()


def test_an_asynchronous_permute_has_a_stream_of_its_own():
    order = order_of(
        """
%cps = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), source_target_pairs={{0,1}}
ROOT %cpd = f32[8]{0} collective-permute-done(%cps)
"""
    )
    assert order.collectives[0].lane == PAIRS


@pytest.mark.parametrize(
    "groups",
    [
        "replica_groups={{0,2},{1,3}}, use_global_device_ids=true",
        "replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true",
        "replica_groups=mesh['d'=2,'m'=2] {'d'}, use_global_device_ids=true",
    ],
    ids=["list", "iota", "mesh"],
)
def test_groups_of_every_form_are_the_same(groups):
    order = order_of(
        f"ROOT %ar = f32[8]{{0}} all-reduce(%p), channel_id=1, {groups}, to_apply=%add"
    )
    assert order.collectives[0].groups == ((0, 2), (1, 3))


def test_no_groups_are_all_devices():
    order = order_of(
        "ROOT %ar = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={}, to_apply=%add"
    )
    assert order.collectives[0].groups == ((0, 1, 2, 3),)


DUMPS = sorted(
    (Path(__file__).parents[2] / "testdata" / "hlo").rglob("module_*.txt.xz")
)


@pytest.mark.parametrize("text", DUMPS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_text_and_proto_of_a_real_module_have_one_order(text):
    """The hook reads text, the command the proto."""
    proto = text.with_name(text.name.replace(".txt", ".hlo.pb"))
    order = launch_order(read_module(proto))
    assert order.starts
    assert launches_in(lzma.decompress(text.read_bytes()).decode()) == order
