"""`tracelens whatif`: how long a run's steps would be if something were different."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs
from tracelens.model.fmt import align_cells, duration, percent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tracelens.replay.whatif import Answer, WhatIf

NAME: Final = "whatif"
HELP: Final = "replay a run with something changed: how long its steps would be"
EXAMPLES: Final = """\
  tracelens whatif traces/today --what fix:1 --what fix:2    # findings 1 and 2 of the report fixed
  tracelens whatif traces/today --what rank:3=median    # rank 3 as fast as the others
  tracelens whatif traces/today --what phase:data=0 --what 'bandwidth*2'    # both at once
  tracelens whatif traces/today --what all    # every single edit, the largest saving first
  tracelens whatif traces/today --what buckets=100MB --format json
"""

_HEADINGS: Final = ("what if", "step before", "after", "95 % interval", "saving")
_MAX_RANKS_SHOWN: Final = 8
_COLUMNS: Final = 88


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `whatif`."""
    runs.add_trace(parser)
    parser.add_argument(
        "--what",
        action="append",
        required=True,
        metavar="EDIT",
        help="what is different (docs/whatif.md), again for several at once: fix:N (of finding N), "
        "rank:R=median, phase:P=0, bandwidth*F, latency/F, message_cost/F, buckets=SIZE, "
        "overlap=off ...; or all",
    )
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Open, replay, print."""
    trace = runs.open_trace(arguments)
    from tracelens.reports.lines import json_text
    from tracelens.verdicts.whatif import whatif

    answers = whatif(trace, *arguments.what)
    if arguments.format == "json":
        sys.stdout.write(json_text(answers.to_dict()))
    else:
        write = to_markdown if arguments.format == "markdown" else to_text
        sys.stdout.write(write(answers))
    return 0


def to_text(whatif: WhatIf) -> str:
    """Write the answers as text: a table, the waits of ranks if it has one row, and its reliability."""
    lines = align_cells([_HEADINGS, *map(_make_cells, whatif.answers)])
    lines.insert(1, "-" * max(map(len, lines)))
    notes = (textwrap.fill(note, _COLUMNS, subsequent_indent="  ") for note in _make_notes(whatif))
    return "\n".join([*lines, "", *notes]) + "\n"


def to_markdown(whatif: WhatIf) -> str:
    """Write the answers as Markdown: a table with one row each, and notes on their reliability."""
    from tracelens.reports.lines import escape_markdown, markdown_row

    ruler = ("---", *["---:"] * (len(_HEADINGS) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (_HEADINGS, ruler)]
    lines += [markdown_row(_make_cells(answer)) for answer in whatif.answers]
    notes = (f"- {escape_markdown(note)}" for note in _make_notes(whatif))
    return "\n".join([*lines, "", *notes]) + "\n"


def _make_cells(answer: Answer) -> tuple[str, ...]:
    """Return an answer's row of the table, under `_HEADINGS`."""
    from tracelens.model.inert import clean

    low_ns, high_ns = answer.after_interval_ns
    return (
        clean(" + ".join(answer.edits)),
        duration(answer.before_ns),
        duration(answer.after_ns),
        f"{duration(low_ns)} to {duration(high_ns)}",
        percent(answer.saving, digits=1),
    )


def _make_notes(whatif: WhatIf) -> Sequence[str]:
    """Return sentences: the reliability, for a single answer the ranks' waits, and refusals."""
    from tracelens.model.inert import clean

    notes = [whatif.trust]
    if len(whatif.answers) == 1:
        (answer,) = whatif.answers
        wait_texts = (
            f"rank {rank} {duration(before_ns)} -> {duration(after_ns)}"
            for rank, (before_ns, after_ns) in list(answer.waits.items())[:_MAX_RANKS_SHOWN]
        )
        more_text = ", ..." if len(answer.waits) > _MAX_RANKS_SHOWN else ""
        notes += [
            f"Waiting and communicating, per step: {', '.join(wait_texts)}{more_text}",
            *answer.remarks,
        ]
    refusals = ((clean(edit), clean(reason)) for edit, reason in whatif.refused)
    return [*notes, *(f"No answer to {edit}: {reason}" for edit, reason in refusals)]
