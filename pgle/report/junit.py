"""The checks of a comparison as JUnit XML, one test case each."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from pgle.report.compare import headline
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check


def xml(found: Comparison, checks: Sequence[Check]) -> str:
    """The document: suite ``pgle compare``; a failed check is a failure with its message."""
    failed = sum(not check.ok for check in checks)
    suite = ElementTree.Element("testsuite", name="pgle compare", tests=str(len(checks)), failures=str(failed))
    for name, value in (("verdict", found.verdict.value), ("ratio", f"{found.ratio:.6f}")):
        properties = suite.find("properties")
        parent = ElementTree.SubElement(suite, "properties") if properties is None else properties
        ElementTree.SubElement(parent, "property", name=name, value=value)
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="pgle.compare", name=check.name)
        if check.ok:
            ElementTree.SubElement(case, "system-out").text = _clean(check.message)
        else:
            failure = ElementTree.SubElement(case, "failure", message=_clean(check.message), type=found.verdict.value)
            failure.text = _clean("\n".join((headline(found), *found.warnings)))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(sign for sign in text if sign in "\t\n" or ord(sign) >= 32)
