"""What `pgle analyze` says to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pgle.analyze.findings import EvidenceRow, StepFinding
from pgle.report.analyze import actions


def test_a_long_scope_is_named_by_its_last_part() -> None:
    scope = "/".join(
        [
            "Transformer",
            *(f"AttentionOp_0.{number:030}" for number in range(6)),
            "compute_local_attention",
        ]
    )
    rows = (EvidenceRow(scope, 3740.0), EvidenceRow("other", 1.0))
    finding = StepFinding(
        7e3,
        "7.4 % of the step",
        rows,
        "keep",
        id="needless-rematerialisation",
        share=0.07,
    )
    step = SimpleNamespace(
        trace=SimpleNamespace(simulated=True),
        parts=SimpleNamespace(of=lambda group: {}),
        overlap=None,
        step_us=1e5,
    )
    found: Any = SimpleNamespace(step=step, findings=(finding,))
    (action,) = actions(found)
    assert action.why == "7.4 % of the step, most in compute_local_attention (3.74 ms)"
    assert action.find == scope
