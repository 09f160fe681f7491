"""`tracelens info`: what a trace folder holds, before any analysis."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from tracelens.cli.opening import add_trace, has_options, local, named, open_trace, progress
from tracelens.schema.vocabulary import DETAILS

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.native.summary import FileFacts

NAME: Final = "info"
HELP: Final = "list the processes of a recorded run: ranks, hosts, steps, events, losses"
EXAMPLES: Final = """\
  tracelens info traces/today
  tracelens info traces/today --format json
  tracelens info profiles/    # what torch.profiler exports: what was recognised, and what was not
  tracelens info events.csv
  tracelens info s3://bucket/run    # reads the ends of its files (docs/remote.md)
"""

_COLUMNS: Final = ("process", "host", "pid", "steps", "events", "seconds", "dropped", "recording")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `info`."""
    add_trace(parser)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Gather the facts and print them."""
    place = arguments.trace
    as_table = has_options(arguments)
    arguments.trace = local(place, None if as_table else _has_summary)
    facts = (
        _of_files(arguments.trace) if _is_recorded(arguments) else describe(open_trace(arguments))
    )
    facts["trace"] = named(place)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        _print(facts, markdown=arguments.format == "markdown")
    return 0


def _has_summary(file: Path) -> bool:
    """Return whether the end of a recording has a summary of it."""
    from tracelens.readers.native.arrow_file import read_end
    from tracelens.readers.native.recordings import DAMAGE

    try:
        end = read_end(file)
    except DAMAGE:  # as it would be if it were whole, and said then
        return False
    return end is not None and end.summary is not None


def _is_recorded(arguments: argparse.Namespace) -> bool:
    """Return whether it is a finished recording, whose files tell it all: no table of spans."""
    from tracelens.readers.native.summary import is_finished

    as_table = has_options(arguments)
    if as_table or not is_finished(arguments.trace):
        return False
    if arguments.trace.is_dir():
        return True
    from tracelens.readers.table.reader import is_table

    return not is_table(arguments.trace)


def _of_files(path: Path) -> dict[str, Any]:
    """Gather the facts from what files say of themselves, without reading their events."""
    from tracelens.model.fmt import shown_name
    from tracelens.readers.native.summary import main_flags, notes_of, sampled, summaries
    from tracelens.reports.messages import noted

    with progress("reading") as on_progress:
        found, unreadable = summaries(path, on_progress)
    main, restarts = main_flags(found)
    return {
        "trace": shown_name(path),
        "ranks_expected": max(sum(main), *(facts.side.process.world for facts in found)),
        "processes": [
            _process(*pair) for pair in sorted(zip(found, main, strict=True), key=_order)
        ],
        "clock": _clocks(found),
        "sampled": sampled(path, found),
        "devices": _device_clocks(found),
        "notes": [noted(note) for note in (*unreadable, *notes_of(found), *restarts)],
        "recognised": None,  # it is a recording of our own
    }


def _order(pair: tuple[FileFacts, bool]) -> tuple[str, int, int]:
    process = pair[0].side.process
    return (process.role, process.rank, process.pid)


def _process(facts: FileFacts, main: bool) -> dict[str, Any]:  # noqa: FBT001 - one of a pair
    """Return the facts of a process; only who stands for a worker rank has steps."""
    process, summary = facts.side.process, facts.summary
    return {
        "role": process.role,
        "rank": process.rank,
        "host": process.host,
        "pid": process.pid,
        "steps": summary.steps if main and process.role == "worker" else 0,
        "events": summary.rows,
        "seconds": _seconds(summary.first_ns, summary.last_ns),
        "dropped": sum(facts.lost.values()),
        "complete": facts.side.complete and not facts.cut,
        "file": facts.file,
        "detail": facts.side.retention.detail,
    }


def _clocks(found: list[FileFacts]) -> str:
    """Return how many clocks there are, and what can tie them to one another."""
    count = len({facts.side.process.clock_domain or facts.side.process.host for facts in found})
    if count < 2:
        return "one clock"
    kinds = {kind for facts in found for kind in facts.summary.kinds}
    read = {reading.method for facts in found for reading in facts.side.clocks}
    ties = {
        "collectives": "reduction" in kinds,
        "ping-pong": "ping_pong" in read,
        "requests to parameter servers": "ps" in kinds,
        "wall clocks": "local" in read,
    }
    possible = " or ".join(name for name, there in ties.items() if there)
    return f"{count} clocks, to be tied by {possible}" if possible else f"{count} clocks, not tied"


def _device_clocks(found: list[FileFacts]) -> list[dict[str, Any]]:
    """Return the clocks of devices as their readings tell them."""
    rows = [
        {"process": index, **vars(reading)}
        for index, facts in enumerate(found)
        for reading in facts.side.clocks
        if reading.method == "device"
    ]
    if not rows:
        return []
    import polars as pl

    from tracelens.align.devices import clocks_of
    from tracelens.model.trace import CLOCK_COLUMNS

    return clocks_of(pl.DataFrame(rows, schema=CLOCK_COLUMNS)).to_dicts()


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
            "seconds": _seconds(row["first_ns"], row["last_ns"]),
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
        "recognised": _recognised(trace),
    }


def _recognised(trace: Trace) -> dict[str, Any] | None:
    """Return what was made of a trace that something else recorded; null for our own."""
    if trace.recognition is None:
        return None
    from tracelens.verdicts.recognised import facts_of, gaps_of

    return {
        "format": trace.recognition.format,
        "found": [{"what": what, "there": there} for what, there in facts_of(trace)],
        "left_out": [{"what": what, "events": count} for what, count in trace.recognition.left_out],
        "not_known": [
            {"missing": gap.missing, "unknown": gap.unknown, "decisive": gap.decisive}
            | {"advice": gap.advice}
            for gap in gaps_of(trace)
        ],
    }


def _seconds(first_ns: int | None, last_ns: int | None) -> float | None:
    return None if first_ns is None or last_ns is None else round((last_ns - first_ns) / 1e9, 3)


def _print(facts: dict[str, Any], *, markdown: bool) -> None:
    """Write the facts as text, in which nothing that was recorded acts."""
    if markdown:
        from tracelens.reports.to_markdown import escaped as shown
    else:
        from tracelens.model.inert import clean as shown

    count, detail = len(facts["processes"]), _detail(facts["processes"])
    lines = [f"{shown(facts['trace'])}: {count} processes, clocks: {facts['clock']}{detail}"]
    if facts["sampled"]:
        lines.append(f"stacks sampled in {facts['sampled']} processes")
    if facts["devices"]:
        lines.append(_devices(facts["devices"]))
    cells = map(_cells, facts["processes"])
    rows = [_COLUMNS, *(tuple(map(shown, row)) for row in cells)]
    lines += ["", *(_markdown(rows) if markdown else _columns(rows)), ""]
    lines += map(shown, _as_recognised(facts.get("recognised")))
    lines += [f"note: {shown(note)}" for note in facts["notes"]]
    sys.stdout.write("\n".join(lines) + "\n")


def _as_recognised(found: dict[str, Any] | None) -> list[str]:
    """Return what was recognised, what was not, and what therefore cannot be concluded."""
    if found is None:
        return []
    wide = max(len(fact["what"]) for fact in found["found"])
    facts = [f"  {fact['what'].ljust(wide)}  {fact['there']}" for fact in found["found"]]
    aside = [f"  {one['events']:,} {one['what']}" for one in found["left_out"]]
    unknown = [
        f"  {gap['unknown']}, as {gap['missing']}. {gap['advice']}" for gap in found["not_known"]
    ]
    parts = (
        (f"Recognised, as {found['format']}:", facts),
        ("Read, and in no span:", aside),
        ("Not known, so nothing is concluded on it:", unknown),
    )
    return [line for head, body in parts if body for line in (head, *body, "")]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    pid = "-" if row["pid"] is None else str(row["pid"])
    numbers = (_cell(row[name]) for name in _COLUMNS[3:7])
    ended = "completed" if row["complete"] else "truncated"
    return (f"{row['role']} {row['rank']}", _cell(row["host"]), pid, *numbers, ended)


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    from tracelens.model.fmt import aligned

    head, *body = aligned(rows)
    return [head, "-" * max(map(len, (head, *body))), *body]


def _markdown(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|{'---|' * len(rows[0])}", *body]


def _detail(processes: list[dict[str, Any]]) -> str:
    levels = sorted({row["detail"] for row in processes if row["detail"]}, key=DETAILS.index)
    return f", detail: {', '.join(levels)}" if levels else ""


def _devices(clocks: list[dict[str, Any]]) -> str:
    from tracelens.model.fmt import duration

    worst = max(clock["uncertainty_ns"] for clock in clocks)
    return f"{len(clocks)} devices timed, clock uncertainty {duration(worst)}"


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
