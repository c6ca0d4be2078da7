"""The tables of docs/architectures.md, from what was exported, compared and refused."""

import os
from collections.abc import Iterable

from specexport.passes import PassReport
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.group_query_attention import GroupQueryAttention, PackAttentionInputs
from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "architectures.md"

BEGIN, END = "<!-- {}: written by the tests -->", "<!-- end of {} -->"


def exported_row(
    model_type: str, features: str, equal: dict[str, bool], reports: Iterable[PassReport]
) -> str:
    """One line: what the graph carries, whether each variant equals PyTorch, what became of its attention."""
    verdicts = " | ".join(
        "equal" if equal[variant] else "**differs**" for variant in ("canonical", "onnxruntime")
    )
    return f"| `{model_type}` | {features} | {verdicts} | {attention_cell(list(reports))} |"


def attention_cell(reports: list[PassReport]) -> str:
    by_name = {report.name: report for report in reports}
    fused = by_name[GroupQueryAttention.name]
    if not fused.changed:
        return f"not fused: {_reasons(fused)}"
    parts = ["fused"]
    for name, done, left in (
        (RotateInAttention.name, "rotates inside", "rotation outside"),
        (PackAttentionInputs.name, "packed projection", "projection split"),
    ):
        report = by_name[name]
        if report.changed:
            some = (
                "" if report.changed == fused.changed else f" in {report.changed} of {fused.changed} layers"
            )
            parts.append(done + some)
        if report.reasons:
            parts.append(f"{left}: {_reasons(report)}")
    return "; ".join(parts)


def _reasons(report: PassReport) -> str:
    """Each reason once, without the names of nodes."""
    return ", ".join(dict.fromkeys(reason.split(": ", 1)[-1] for reason in report.reasons))


def between(text: str, section: str) -> str:
    """The lines of `text` between the two marks of `section`."""
    begin, end = BEGIN.format(section), END.format(section)
    return text.split(begin, 1)[1].split(end, 1)[0].strip("\n")


def replaced(text: str, section: str, lines: str) -> str:
    begin, end = BEGIN.format(section), END.format(section)
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n\n{lines}\n\n{end}{rest.split(end, 1)[1]}"


def require_section(section: str, lines: str) -> None:
    """The page's lines of `section` are `lines`; SPECEXPORT_WRITE_DOCS=1 writes them instead."""
    text = PAGE.read_text()
    if os.environ.get("SPECEXPORT_WRITE_DOCS"):
        PAGE.write_text(replaced(text, section, lines))
        return
    assert between(text, section).strip() == lines, (
        f"SPECEXPORT_WRITE_DOCS=1 pytest tests/specexport/export writes {PAGE.name}"
    )
