"""Compile one small step, so that a capture finds it: ``python -m benchmarks.gpu.lower_step
attention_cudnn``.
"""

from __future__ import annotations

import sys

from benchmarks.gpu.cases import shapes
from benchmarks.gpu.steps import steps

if __name__ == "__main__":
    [chosen] = [case for case in steps(small=True) if case.name == sys.argv[1]]
    chosen.jitted.lower(*shapes(chosen)).compile()
