"""Answers to "what if" as text and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.fmt import duration, percent
from tracelens.reports.messages import clean
from tracelens.reports.to_markdown import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.replay.whatif import Answer, WhatIf

__all__ = ["markdown", "text"]

_HEADINGS = ("what if", "step before", "after", "95 % interval", "saving")


def text(found: WhatIf) -> str:
    """Write the answers as text: a table, who waits if it is one answer, and how far to trust it."""
    rows = [_HEADINGS, *map(_cells, found.answers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join([*lines, "", *_below(found)]) + "\n"


def markdown(found: WhatIf) -> str:
    """Write the same as Markdown."""
    rows = [
        _HEADINGS,
        ("---", *["---:"] * (len(_HEADINGS) - 1)),
        *(map(escaped, _cells(one)) for one in found.answers),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"- {escaped(line)}" for line in _below(found))]) + "\n"


def _cells(answer: Answer) -> tuple[str, ...]:
    low, high = answer.after_interval_ns
    return (
        clean(" + ".join(answer.edits)),
        duration(answer.before_ns),
        duration(answer.after_ns),
        f"{duration(low)} to {duration(high)}",
        percent(answer.saving, 1),
    )


def _below(found: WhatIf) -> Sequence[str]:
    lines = [_trust(found)]
    if len(found.answers) == 1:
        (answer,) = found.answers
        waits = (
            f"rank {rank} {duration(was)} -> {duration(then)}"
            for rank, (was, then) in list(answer.waits.items())[:_MOST_RANKS]
        )
        more = ", ..." if len(answer.waits) > _MOST_RANKS else ""
        lines.append(f"Waiting and communicating, per step: {', '.join(waits)}{more}")
    lines += [
        note for answer in found.answers[:1] if len(found.answers) == 1 for note in answer.notes
    ]
    return [*lines, *(f"No answer to {clean(edit)}: {clean(why)}" for edit, why in found.refused)]


_MOST_RANKS = 8


def _trust(found: WhatIf) -> str:
    identity = found.identity
    error = (
        f"Without edits the replay of {found.steps} steps differs from the run by "
        f"{percent(abs(identity.whole), 1)} (usual step: {percent(identity.median_step, 1)})"
    )
    kept = (
        f"; {percent(identity.kept, 1)} of the ranks' time is blocked for a reason that the trace "
        "does not tell, and stays as it was."
    )
    doubt = "" if identity.reliable else " Unreliable: this is more than 3 %."
    return f"{error}{kept}{doubt}"
