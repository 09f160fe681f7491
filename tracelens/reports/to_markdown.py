"""The report for an issue or a chat: the same as the text, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.finding_kinds import KINDS
from tracelens.model.fmt import percent
from tracelens.reports.lines import escape_markdown, markdown_row
from tracelens.reports.messages import list_verdict_lines, name_cause, write_note, write_saving
from tracelens.reports.tables import make_sections

if TYPE_CHECKING:
    from tracelens.model.result import Report


def render(report: Report) -> str:
    """Write the report as Markdown."""
    lines = [f"**TraceLens**: {escape_markdown(report.verdict.headline)}", ""]
    lines += [f"- {name}: {escape_markdown(line)}" for name, line in list_verdict_lines(report)]
    lines.append("")
    for number, finding in enumerate(report.findings, 1):
        saving_text = write_saving(finding)
        note = f", {saving_text}" if saving_text else ""
        lines.append(f"{number}. **{KINDS[finding.kind].title}** ({finding.category}{note}):")
        lines.append(f"   {escape_markdown(finding.sentence)}")
    if report.efficiency:
        useful_name = "useful computation (POP parallel efficiency)"
        if report.efficiency.at_most:  # an upper bound
            useful_name += ", at most"
        names_and_shares = [(useful_name, report.efficiency.achieved)]
        if report.efficiency.useful_uninstrumented:
            uninstrumented_share = report.efficiency.useful_uninstrumented
            names_and_shares.append(("of it uninstrumented", uninstrumented_share))
        names_and_shares += [
            (name_cause(bar.cause), bar.share) for bar in report.efficiency.waterfall
        ]
        lines += ["", "| where the time went | share |", "|---|---:|"]
        lines += [f"| {name} | {percent(share, digits=1)} |" for name, share in names_and_shares]
    for section in make_sections(report.tables):
        lines += ["", f"**{section.title}**", ""]
        alignments = ["---:"] * len(section.headings)
        lines += map(markdown_row, (section.headings, alignments, *section.rows))
    notes = [f"- {escape_markdown(write_note(note))}" for note in report.notes]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"
