"""`tracelens info`: what a trace folder holds, before any analysis."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from tracelens.cli.opening import add_trace, open_trace
from tracelens.schema.vocabulary import DETAILS

if TYPE_CHECKING:
    import argparse

    from tracelens.model.trace import Trace

NAME: Final = "info"
HELP: Final = "list the processes of a recorded run: ranks, hosts, steps, events, losses"
EXAMPLES: Final = """\
  tracelens info traces/today
  tracelens info traces/today --format json
  tracelens info events.csv
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `info`."""
    add_trace(parser)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Open and print."""
    facts = describe(open_trace(arguments))
    if arguments.format == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        _print(facts, markdown=arguments.format == "markdown")
    return 0


def describe(trace: Trace) -> dict[str, Any]:
    """Gather the facts as plain values."""
    from tracelens.model.fmt import shown_name
    from tracelens.reports.messages import noted

    steps = dict(trace.steps.group_by("process").len().iter_rows())
    processes = [
        {
            "role": row["role"],
            "rank": row["rank"],
            "host": row["host"],
            "pid": row["pid"],
            "steps": steps.get(row["process"], 0),
            "events": row["events"],
            "seconds": round((row["last_ns"] - row["first_ns"]) / 1e9, 3)
            if row["last_ns"] is not None and row["first_ns"] is not None
            else None,
            "dropped": row["dropped"],
            "complete": row["complete"],
            "file": row["file"],
            "detail": row["detail"],
        }
        for row in trace.processes.sort("role", "rank", "pid").iter_rows(named=True)
    ]
    return {
        "trace": shown_name(trace.path) if trace.path else "",
        "ranks_expected": trace.expected_ranks,
        "processes": processes,
        "clock": trace.alignment.method,
        "sampled": trace.samples["process"].n_unique(),
        "devices": trace.device_clocks.to_dicts(),
        "notes": [noted(note) for note in trace.notes],
    }


def _print(facts: dict[str, Any], *, markdown: bool) -> None:
    from rich.box import MARKDOWN, SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    columns = ("process", "host", "pid", "steps", "events", "seconds", "dropped", "recording")
    table = Table(*columns, box=MARKDOWN if markdown else SIMPLE_HEAD)
    for row in facts["processes"]:
        values = (
            row["host"],
            "-" if row["pid"] is None else str(row["pid"]),
            *(row[key] for key in columns[3:7]),
        )
        ended = "completed" if row["complete"] else "truncated"
        table.add_row(f"{row['role']} {row['rank']}", *map(_cell, values), ended)
    console = Console(highlight=False, markup=False)
    console.print(
        f"{facts['trace']}: {len(facts['processes'])} processes, clocks: {facts['clock']}"
        f"{_detail(facts['processes'])}"
    )
    if facts["sampled"]:
        console.print(f"stacks sampled in {facts['sampled']} processes")
    if facts["devices"]:
        console.print(_devices(facts["devices"]))
    console.print(table)
    for note in facts["notes"]:
        console.print(f"note: {note}")


def _detail(processes: list[dict[str, Any]]) -> str:
    levels = sorted({row["detail"] for row in processes if row["detail"]}, key=DETAILS.index)
    return f", detail: {', '.join(levels)}" if levels else ""


def _devices(clocks: list[dict[str, Any]]) -> str:
    from tracelens.model.fmt import duration

    worst = max(clock["uncertainty_ns"] for clock in clocks)
    return f"{len(clocks)} devices timed, clock uncertainty {duration(worst)}"


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
