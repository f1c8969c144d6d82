"""Answers that need no request: the files of a folder, and the facts known about a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pgle.api.answer import Answer, answer
from pgle.requests.function import user_errors
from pgle.requests.given import StrPath


@user_errors()
def folder(path: StrPath = ".") -> Answer[Any]:
    """List the files of a folder, and say what to do next with them.

    Args:
        path: the folder.
    """
    from pgle.report.start import folder_page
    from pgle.run.inputs.folder import contents_of

    found = contents_of(Path(path))
    return Answer(found, folder_page(found), {}, True)


@user_errors()
def flags_explain(name: str) -> Answer[Any]:
    """Explain one setting of XLA, NCCL, CUDA or JAX: meaning, values, defaults by release, what
    others measured.

    Args:
        name: name of the flag or variable.
    """
    from pgle.report import flags as report
    from pgle.xla.flags.catalogue import find

    found = find(name)
    document = report.ExplainDocument(report.setting_document(found))
    return answer("flags", found, report.setting_page(found), document)
