"""The report for an issue or a chat: the same as the text, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.finding_kinds import KINDS
from tracelens.model.fmt import percent
from tracelens.reports.lines import escaped, markdown_row
from tracelens.reports.messages import cause, lines_of, saving, write_note
from tracelens.reports.tables import sections

if TYPE_CHECKING:
    from tracelens.model.result import Report


def render(report: Report) -> str:
    """Write the report as Markdown."""
    lines = [f"**TraceLens**: {escaped(report.verdict.headline)}", ""]
    lines += [*(f"- {name}: {escaped(line)}" for name, line in lines_of(report)), ""]
    for number, finding in enumerate(report.findings, 1):
        gain = saving(finding)
        price = f", {gain}" if gain else ""
        lines.append(f"{number}. **{KINDS[finding.kind].title}** ({finding.category}{price}):")
        lines.append(f"   {escaped(finding.sentence)}")
    if report.efficiency:
        useful = "useful computation (POP parallel efficiency)"
        if report.efficiency.at_most:
            useful += ", at most"
        shares = [(useful, report.efficiency.achieved)]
        if report.efficiency.useful_uninstrumented:
            shares.append(("of it uninstrumented", report.efficiency.useful_uninstrumented))
        shares += [(cause(bar.cause), bar.share) for bar in report.efficiency.waterfall]
        lines += ["", "| where the time went | share |", "|---|---:|"]
        lines += [f"| {name} | {percent(share, 1)} |" for name, share in shares]
    for section in sections(report.tables):
        lines += ["", f"**{section.title}**", ""]
        ruler = ["---:"] * len(section.headings)
        lines += map(markdown_row, (section.headings, ruler, *section.rows))
    notes = [f"- {escaped(write_note(note))}" for note in report.notes]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"
