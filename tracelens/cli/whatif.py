"""`tracelens whatif`: how long a run's steps would be if something were different."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_trace, open_trace
from tracelens.model.fmt import aligned, duration, percent

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
_MOST_RANKS: Final = 8
_COLUMNS: Final = 88


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `whatif`."""
    add_trace(parser)
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
    trace = open_trace(arguments)
    from tracelens.verdicts.whatif import whatif

    found = whatif(trace, *arguments.what)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        write = markdown if arguments.format == "markdown" else text
        sys.stdout.write(write(found))
    return 0


def text(found: WhatIf) -> str:
    """Write the answers as text: a table, who waits if it is one answer, and how far to trust it."""
    lines = aligned([_HEADINGS, *map(_cells, found.answers)])
    lines.insert(1, "-" * max(map(len, lines)))
    below = (textwrap.fill(line, _COLUMNS, subsequent_indent="  ") for line in _below(found))
    return "\n".join([*lines, "", *below]) + "\n"


def markdown(found: WhatIf) -> str:
    """Write the same as Markdown."""
    from tracelens.reports.to_markdown import escaped

    rows = [
        _HEADINGS,
        ("---", *["---:"] * (len(_HEADINGS) - 1)),
        *(map(escaped, _cells(one)) for one in found.answers),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"- {escaped(line)}" for line in _below(found))]) + "\n"


def _cells(answer: Answer) -> tuple[str, ...]:
    from tracelens.model.inert import clean

    low, high = answer.after_interval_ns
    return (
        clean(" + ".join(answer.edits)),
        duration(answer.before_ns),
        duration(answer.after_ns),
        f"{duration(low)} to {duration(high)}",
        percent(answer.saving, 1),
    )


def _below(found: WhatIf) -> Sequence[str]:
    from tracelens.model.inert import clean

    lines = [found.trust]
    if len(found.answers) == 1:
        (answer,) = found.answers
        waits = (
            f"rank {rank} {duration(was)} -> {duration(then)}"
            for rank, (was, then) in list(answer.waits.items())[:_MOST_RANKS]
        )
        more = ", ..." if len(answer.waits) > _MOST_RANKS else ""
        lines += [f"Waiting and communicating, per step: {', '.join(waits)}{more}", *answer.remarks]
    return [*lines, *(f"No answer to {clean(edit)}: {clean(why)}" for edit, why in found.refused)]
