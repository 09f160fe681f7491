"""The report for a terminal: the verdict, findings, then where the time went."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING, Final, Literal

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.fmt import duration, percent
from tracelens.model.inert import clean
from tracelens.reports.messages import list_verdict_lines, name_cause, write_note, write_saving
from tracelens.reports.tables import LEFT_ALIGNED, make_sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from tracelens.model.findings import Finding
    from tracelens.model.result import Efficiency, Report
    from tracelens.model.trace import Alignment
    from tracelens.reports.tables import Section

Length = Literal["full", "brief", "verdict"]
BAR: Final = 30
MOST_LINES: Final = 30
_MIN_SHARE_OF_ROW: Final = 0.0005  # of ranks x job time
_LINES_ON_REST: Final = 3  # lines, on what was left out
STYLE: Final = {"fault": "bold red", "opportunity": "yellow"}
VERDICT_STYLE: Final = {
    "fault": "bold red",
    "bottleneck": "bold yellow",
    "healthy": "bold green",
    "inconclusive": "bold yellow",
}


def render(
    report: Report, *, width: int | None = None, color: bool = False, length: Length = "full"
) -> str:
    """Write the report as text, `width` columns wide (default: the terminal's).

    Unless it is ``full``, tables are left out, and findings beyond what `MOST_LINES` have room for; or
    all but the ``verdict``. The first block is the verdict, each other one a finding.
    """
    columns = width or shutil.get_terminal_size((100, 24)).columns
    if length == "verdict":
        return "\n".join(_render_lines([lay_out_verdict(report)], columns, color=color))
    blocks = [
        lay_out_verdict(report),
        *(_write_finding(position, finding) for position, finding in enumerate(report.findings, 1)),
    ]
    waterfall = [_write_waterfall(report.efficiency)] if report.efficiency else []
    if length == "full":
        blocks += [
            *waterfall,
            *map(_write_section, make_sections(report.tables)),
            _write_clock(report.clock),
        ]
        notes = [f"Note: {write_note(note)}" for note in report.notes]
        blocks += [Text("\n".join(notes))] if notes else []
        return "\n".join(_render_lines(blocks, columns, color=color)).rstrip("\n") + "\n"
    waterfall_lines = _render_lines(waterfall, columns, color=color)
    head_lines = _render_lines(blocks[:1], columns, color=color)
    for index, finding_block in enumerate(blocks[1:]):
        finding_lines = _render_lines([finding_block], columns, color=color)
        if (
            len(head_lines) + len(finding_lines) + len(waterfall_lines)
            > MOST_LINES - _LINES_ON_REST
        ):
            head_lines += [f"{fmt.count(len(blocks) - 1 - index, 'finding')} more.", ""]
            break
        head_lines += finding_lines
    more_text = "Tables, notes and how clocks were aligned: tracelens analyze --full"
    return "\n".join([*head_lines, *waterfall_lines, more_text]) + "\n"


def _render_lines(blocks: Sequence[RenderableType], width: int, *, color: bool) -> list[str]:
    """Return blocks as lines, an empty one after each; with `color` they have codes for a terminal."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, no_color=not color, highlight=False
    )
    for block in blocks:
        console.print(block)
        console.print()
    return [line.rstrip() for line in out.getvalue().splitlines()]


def lay_out_verdict(report: Report) -> RenderableType:
    """Return the verdict as a grid: its headline, then its named lines."""
    verdict = report.verdict
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    headline = Text(clean(verdict.headline), style=VERDICT_STYLE[verdict.state])
    table.add_row("Verdict", headline)
    for name, line in list_verdict_lines(report):
        table.add_row(name, Text(line))
    return table


def _write_finding(number: int, finding: Finding) -> RenderableType:
    saving_text = write_saving(finding)
    title = Text.assemble(
        (f"{number}. {KINDS[finding.kind].title}", STYLE[finding.category]),
        "" if finding.category == "fault" else " (opportunity)",
        f": {saving_text}" if saving_text else "",
    )
    return Group(title, Padding(Text(clean(finding.sentence)), (0, 0, 0, 3)))


def _write_waterfall(efficiency: Efficiency) -> RenderableType:
    """Return the shares of the time as bars, and the factors of the efficiency (`pop`, by name)."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    useful_name = "useful computation" + ", at most" * efficiency.at_most
    rows = [(useful_name, efficiency.achieved, "blue")]
    if efficiency.useful_uninstrumented >= _MIN_SHARE_OF_ROW:
        rows.append(("  of it uninstrumented", efficiency.useful_uninstrumented, "cyan"))
    rows += [(name_cause(bar.cause), bar.share, "red") for bar in efficiency.waterfall]
    for name, share, style in rows:
        if share >= _MIN_SHARE_OF_ROW or style == "blue":
            bar = "█" * max(round(share * BAR), 1)
            table.add_row(f"  {name}", percent(share, digits=1), Text(bar, style=style))
    factors = [
        f"{name.replace('_', ' ')} {percent(value, digits=1)}"
        for name, value in efficiency.pop.items()
    ]
    factors_text = f"; {', '.join(factors)}" if factors else ""
    return Group(
        Text(f"Where the time went (share of ranks x job time of {duration(efficiency.job_ns)})"),
        table,
        Text(),
        Text(
            "Efficiency is POP parallel efficiency: "
            f"{'at most ' * efficiency.at_most}{percent(efficiency.achieved, digits=1)}"
            f"{factors_text}."
        ),
    )


def _write_section(section: Section) -> RenderableType:
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="dim")
    for heading in section.headings:
        is_text = heading == section.headings[0] or heading in LEFT_ALIGNED
        table.add_column(heading, justify="left" if is_text else "right")
    for row in section.rows:
        table.add_row(*(Text(clean(cell)) for cell in row))  # no markup: a cell may have brackets
    return Group(Text(section.title), Padding(table, (0, 0, 1, 2)))


def _write_clock(alignment: Alignment) -> Text:
    """State how clocks were aligned, and how sure that is."""
    if alignment.method == "same_clock":
        return Text("Clocks: all processes share one.")
    method = alignment.method.replace("_", " ")
    unaligned_count = len(alignment.untied_clock_domains)
    if alignment.method == "unaligned":
        return Text("Clocks: not aligned; wait times between hosts are unknown.")
    unaligned_note = (
        f"; {unaligned_count} not aligned, wait times for them are unknown"
        if unaligned_count
        else ""
    )
    return Text(
        f"Clocks: {len(alignment.hosts) - unaligned_count} aligned by {method}, "
        f"to within {duration(alignment.uncertainty_ns)}{unaligned_note}."
    )
