"""The report for a terminal: findings first, then where the time went."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import healthy
from tracelens.model.fmt import duration, percent
from tracelens.reports.messages import cause, clean, headline, noted, saving
from tracelens.reports.tables import sections

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tracelens.model.findings import Finding
    from tracelens.model.result import Efficiency, Report
    from tracelens.model.trace import Alignment
    from tracelens.reports.tables import Section

__all__ = ["render"]

BAR: Final = 30
STYLE: Final = {"fault": "bold red", "opportunity": "yellow"}


def render(report: Report, *, width: int | None = None, color: bool = False) -> str:
    """Write the report as text, `width` columns wide (default: the terminal's)."""
    out = io.StringIO()
    columns = width or shutil.get_terminal_size((100, 24)).columns
    console = Console(
        file=out, width=columns, force_terminal=color, no_color=not color, highlight=False
    )
    console.print(Text(headline(report), style="dim"))
    console.print(_findings(report))
    if report.efficiency:
        console.print(_waterfall(report.efficiency))
    console.print()
    for section in sections(report.tables):
        console.print(_section(section))
    console.print(_clock(report.clock))
    for note in report.notes:
        console.print(Text(f"Note: {noted(note)}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _findings(report: Report) -> RenderableType:
    faults = any(finding.category == "fault" for finding in report.findings)
    parts: list[RenderableType] = [Text()]
    if not faults:
        parts += [
            Text(f"{healthy(report.findings, report.summary.part)}.", style="bold green"),
            Text(),
        ]
    for number, finding in enumerate(report.findings, 1):
        parts += [_finding(number, finding), Text()]
    return Group(*parts)


def _finding(number: int, finding: Finding) -> RenderableType:
    gain = saving(finding)
    title = Text.assemble(
        (f"{number}. {KINDS[finding.kind].title}", STYLE[finding.category]),
        "" if finding.category == "fault" else " (opportunity)",
        f": {gain}" if gain else "",
    )
    return Group(title, Padding(Text(clean(finding.sentence)), (0, 0, 0, 3)))


def _waterfall(efficiency: Efficiency) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    rows = [("useful computation", efficiency.achieved, "blue")]
    rows += [(cause(bar.cause), bar.share, "red") for bar in efficiency.waterfall]
    for name, share, style in rows:
        if share >= 0.0005 or style == "blue":
            bar = "█" * max(round(share * BAR), 1)
            table.add_row(f"  {name}", percent(share, 1), Text(bar, style=style))
    factors = "".join(
        f", {name.replace('_', ' ')} {percent(value, 1)}" for name, value in efficiency.pop.items()
    ).replace(",", ";", 1)
    return Group(
        Text(f"Where the time went (share of ranks x job time of {duration(efficiency.job_ns)})"),
        table,
        Text(),
        Text(f"Efficiency is POP parallel efficiency: {percent(efficiency.achieved, 1)}{factors}."),
    )


def _section(section: Section) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim")
    for heading in section.headings:
        table.add_column(heading, justify="left" if heading == section.headings[0] else "right")
    for row in section.rows:
        table.add_row(*map(clean, row))
    return Group(Text(section.title), Padding(table, (0, 0, 1, 2)))


def _clock(alignment: Alignment) -> Text:
    if alignment.method == "same_clock":
        return Text("Clocks: all processes share one.")
    method = alignment.method.replace("_", " ")
    loose = len(alignment.unaligned)
    if alignment.method == "unaligned":
        return Text("Clocks: not aligned; wait times between hosts are unknown.")
    rest = f"; {loose} not aligned, wait times for them are unknown" if loose else ""
    return Text(
        f"Clocks: {len(alignment.hosts) - loose} aligned by {method}, "
        f"to within {duration(alignment.uncertainty_ns)}{rest}."
    )
