"""CUDA graphs, as XLA's command buffers become in a trace."""

from __future__ import annotations

from typing import Any

import pytest
from trace_rows import left_out, resolved

from pgle.errors import UserError

MACHINE = 1 << 48
STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"
THREAD = MACHINE | 1 << 24 | 1


def graph_step(export: Any) -> int:
    """A step whose command buffer is launched at 50; returns the launch's correlation id."""
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=command_buffer_1#", 10, 90)
    return export.call(50, name="cuGraphLaunch")


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])
def test_a_graph_node_belongs_to_the_thunk_that_made_it(
    export: Any, table: str
) -> None:
    export.tables[table] = export.tables["CUDA_GRAPH_EVENTS"]
    correlation = graph_step(export)
    for number, name in enumerate(("mul.20", "sub.21")):
        export.range(f"Thunk:#hlo_op={name}#", 12 + 10 * number, 18 + 10 * number)
        export.row(
            table, start=14 + 10 * number, globalTid=THREAD, graphNodeId=500 + number
        )
        # instantiated, then updated: two clones in a chain
        export.row(
            table,
            start=40,
            globalTid=THREAD,
            graphNodeId=600 + number,
            originalGraphNodeId=500 + number,
        )
        export.row(
            table,
            start=41,
            globalTid=THREAD,
            graphNodeId=700 + number,
            originalGraphNodeId=600 + number,
        )
        export.work(
            2000 + 100 * number, correlation, kernel="library", node=700 + number
        )
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "mul.20"), ("jit_step", 0, "sub.21")]
    assert len(set(trace.instance.tolist())) == 2
    assert trace.unresolved == ()


def test_clones_that_lead_in_a_circle_are_left_out(export: Any) -> None:
    correlation = graph_step(export)
    for node, original in ((1, 2), (2, 1)):
        export.row(
            "CUDA_GRAPH_EVENTS", start=20, globalTid=THREAD, graphNodeId=node, originalGraphNodeId=original
        )  # fmt: skip
    export.work(2000, correlation, node=1)
    export.range("Thunk:#hlo_op=dot.2#", 110, 190)
    export.launch(150)
    assert left_out(export.read()) == {"graph-node": 1}


def test_kernels_of_xla_name_their_instruction_where_the_graph_was_made_before_the_capture(
    export: Any,
) -> None:
    correlation = graph_step(export)
    export.work(2000, correlation, kernel="loop_mul_fusion_20", node=7, duration=70)
    export.work(2100, correlation, kernel="ampere_sgemm_128x64_tn", node=8, duration=50)
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "loop_mul_fusion.20")]
    assert left_out(trace) == {"graph-node": 1}
    assert any(
        "--xla_gpu_enable_command_buffer=" in warning for warning in trace.warnings
    )


def test_graph_mode_hides_activities(export: Any) -> None:
    export.step_with("dot.2")
    export.call(950, name="cuGraphLaunch")
    columns = [
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "graphId",
    ]
    export.tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = columns
    export.row(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=3000,
        end=3400,
        correlationId=export.correlation,
    )
    trace = export.read()
    assert [
        (entry.reason, entry.count, entry.duration_ns) for entry in trace.unresolved
    ] == [("graph-launch", 1, 400)]
    assert "CUDA graphs" in trace.warnings[0]


def test_graph_launches_that_show_nothing_are_counted(export: Any) -> None:
    export.step_with("dot.2")
    export.call(950, name="cudaGraphLaunch_v10000")
    assert left_out(export.read()) == {"graph-launch": 1}


def test_only_graphs_is_an_error(export: Any) -> None:
    graph_step(export)
    with pytest.raises(
        UserError, match=r"only CUDA graphs .*--xla_gpu_enable_command_buffer="
    ):
        export.read()
