"""A comparison for a terminal: at most 30 lines of 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from tracelens.comparison import messages
from tracelens.comparison.series import CATEGORY_OF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.comparison.changes import Comparison
    from tracelens.comparison.gates import Outcome
    from tracelens.comparison.messages import Row

__all__ = ["render"]

COLUMNS: Final = 80  # columns: a line is no longer [policy; one decision in _findings, _wrapped]
MAX_LINES: Final = 30  # lines: a comparison is no longer, so that it fits on a screen [policy]
MAX_LINES_OF_NOTE: Final = 2  # lines: a note, name or gate is no longer [policy]
MAX_FINDINGS_SHOWN: Final = 6  # findings: no more new and gone findings are shown [policy]
MIN_ROWS_SHOWN: Final = 4  # rows: the table shows as many, however little room there is [policy]
_COLUMNS_OF_NAME: Final = 9  # columns: the word before a line has as many [policy]


def render(found: Comparison, outcomes: Sequence[Outcome], /) -> str:
    """Write a comparison; what there is no room for is counted."""
    lines = _wrapped("Verdict", f"{messages.verdict(found)}: {messages.headline(found)}")
    baseline, new = messages.scope(found)
    lines += [*_wrapped("Baseline", baseline), *_wrapped("New", new)]
    for sentence in messages.cautions(found):
        lines += _wrapped("Note", sentence)
    last = [line for outcome in outcomes for line in _gate(outcome)]
    if last:
        last = ["", *last]
    findings = _findings(found)
    room = MAX_LINES - len(lines) - len(last) - len(findings)
    return "\n".join([*lines, *_table(found, room), *findings, *last]) + "\n"


def _table(found: Comparison, room: int) -> list[str]:
    """Return the metrics; of parts of a step, if not all have room, those that changed most."""
    if not found.metrics:
        return []
    rows_free = max(room - 3, MIN_ROWS_SHOWN)  # a blank line, the headings, the last line
    whole = [metric for metric in found.metrics if metric.name not in CATEGORY_OF]
    shown = [*whole, *found.phases[: max(rows_free - len(whole), 0)]]
    shown_names = {metric.name for metric in shown}
    rows = [messages.row(metric) for metric in found.metrics if metric.name in shown_names]
    left_out = len(found.metrics) - len(rows)
    more = f"; {left_out} more: --format json" if left_out else ""
    foot = f"* equal runs would rarely differ so far (p < 0.05){more}"
    return ["", *map(_cells, (messages.HEADINGS, *rows)), foot]


def _cells(row: Row) -> str:
    title, before, after, change, interval, probability, mark = row
    return (
        f"{title[:23]:23} {before:>9} {after:>9} {change:>9} {interval:>16} {probability:>7} {mark}"
    ).rstrip()


def _findings(found: Comparison) -> list[str]:
    rows, count = found.findings[:MAX_FINDINGS_SHOWN], len(found.baselines)
    if not found.findings:
        return ["", "Findings none in any run"]
    words = [f"{messages.STATES[one.state]}: {messages.finding(one, count)}" for one in rows]
    lines = [textwrap.shorten(line, COLUMNS - 2, placeholder=" ...") for line in words]
    more = len(found.findings) - len(rows)
    end = [f"  and {more} more: --format json"] if more else []
    return ["", "Findings", *(f"  {line}" for line in lines), *end]


def _gate(outcome: Outcome) -> list[str]:
    words = f"{outcome.gate.text}: {outcome.reason}"
    return _wrapped("FAILED" if outcome.failed else "passed", words)


def _wrapped(name: str, text: str) -> list[str]:
    indent = " " * _COLUMNS_OF_NAME
    return textwrap.wrap(
        f"{name:{_COLUMNS_OF_NAME}}{text}",
        COLUMNS,
        subsequent_indent=indent,
        max_lines=MAX_LINES_OF_NOTE,
        placeholder=" ...",
        break_on_hyphens=False,
    )
