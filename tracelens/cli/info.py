"""`tracelens info`: what a trace folder holds, before any analysis."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tracelens.cli import runs
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
    runs.add_trace(parser)
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(arguments: argparse.Namespace) -> int:
    """Gather the facts and print them."""
    given_place = arguments.trace
    has_options = runs.has_options(arguments)
    arguments.trace = runs.fetch_copy(given_place, None if has_options else _has_summary)
    facts = (
        _summarize_files(arguments.trace)
        if _is_recorded(arguments)
        else describe(runs.open_trace(arguments))
    )
    facts["trace"] = runs.write_name(given_place)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        _write_facts(facts, markdown=arguments.format == "markdown")
    return 0


def _has_summary(file: Path) -> bool:
    """Return True if the end of a recording has a summary of it."""
    from tracelens.readers.native.arrow_file import read_end
    from tracelens.readers.native.recordings import DAMAGE

    try:
        end = read_end(file)
    except DAMAGE:  # as it would be if it were whole, and said then
        return False
    return end is not None and end.summary is not None


def _is_recorded(arguments: argparse.Namespace) -> bool:
    """Return True for a finished recording, whose files hold all facts; False for a table of spans."""
    from tracelens.readers.native.summary import is_finished

    has_options = runs.has_options(arguments)
    if has_options or not is_finished(arguments.trace):
        return False
    if arguments.trace.is_dir():
        return True
    from tracelens.readers.table.reader import is_table

    return not is_table(arguments.trace)


def _summarize_files(path: Path) -> dict[str, Any]:
    """Gather the facts from what files say of themselves, without reading their events."""
    from tracelens.model.fmt import shown_name
    from tracelens.readers.native.summary import (
        count_sampled_processes,
        find_main_processes,
        note_lacking_parts,
        read_summaries,
    )
    from tracelens.reports.messages import write_note

    with runs.show_progress("reading") as on_progress:
        files, unreadable = read_summaries(path, on_progress)
    is_main, restarts = find_main_processes(files)  # [file]; notes on ranks with several processes
    return {
        "trace": shown_name(path),
        "ranks_expected": max(
            sum(is_main),
            *(
                facts.side_tables.process.world
                for facts, main in zip(files, is_main, strict=True)
                if main
            ),
        ),
        "processes": [_describe_process(facts) for facts in sorted(files, key=_get_order)],
        "clock": _describe_clocks(files),
        "sampled": count_sampled_processes(path, files),
        "devices": _list_device_clocks(files),
        "notes": [
            write_note(note) for note in (*unreadable, *note_lacking_parts(files), *restarts)
        ],
        "life": _measure_life(path)
        if restarts or any(one.side_tables.endings for one in files)
        else None,
        "recognised": None,  # it is a recording of our own
    }


def _get_order(facts: FileFacts) -> tuple[str, int, int]:
    process = facts.side_tables.process
    return (process.role, process.rank, process.pid)


def _describe_process(facts: FileFacts) -> dict[str, Any]:
    """Return the facts of a process; only workers of any attempt have steps, and not their children."""
    process, summary = facts.side_tables.process, facts.summary
    is_child = process.parent_rank_pid is not None
    return {
        "role": process.role,
        "rank": process.rank,
        "host": process.host,
        "pid": process.pid,
        "steps": summary.steps if process.role == "worker" and not is_child else 0,
        "events": summary.rows,
        "seconds": _measure_seconds(summary.first_ns, summary.last_ns),
        "dropped": sum(facts.lost_by_reason.values()),
        "complete": facts.side_tables.complete and not facts.is_cut,
        "file": facts.file_name,
        "detail": facts.side_tables.retention.detail,
        "ended_by": next(
            (one.cause for one in facts.side_tables.endings if one.thread is None), None
        ),
    }


def _describe_clocks(files: list[FileFacts]) -> str:
    """State the number of clocks, and the kinds of events that can tie them to one another."""
    count = len(
        {
            facts.side_tables.process.clock_domain or facts.side_tables.process.host
            for facts in files
        }
    )
    if count < 2:
        return "one clock"
    kinds = {kind for facts in files for kind in facts.summary.kinds}
    reading_methods = {reading.method for facts in files for reading in facts.side_tables.clocks}
    is_possible = {
        "collectives": "reduction" in kinds,
        "ping-pong": "ping_pong" in reading_methods,
        "requests to parameter servers": "ps" in kinds,
        "wall clocks": "local" in reading_methods,
    }
    ties = " or ".join(tie for tie, is_given in is_possible.items() if is_given)
    return f"{count} clocks, to be tied by {ties}" if ties else f"{count} clocks, not tied"


def _list_device_clocks(files: list[FileFacts]) -> list[dict[str, Any]]:
    """Return the clocks of devices as their readings tell them."""
    rows = [
        {"process": index, **vars(reading)}
        for index, facts in enumerate(files)
        for reading in facts.side_tables.clocks
        if reading.method == "device"
    ]
    if not rows:
        return []
    import polars as pl

    from tracelens.align.devices import describe_device_clocks
    from tracelens.model.trace import CLOCK_COLUMNS

    return describe_device_clocks(pl.DataFrame(rows, schema=CLOCK_COLUMNS)).to_dicts()


def describe(trace: Trace) -> dict[str, Any]:
    """Return the facts of a trace as plain values."""
    import polars as pl

    from tracelens.model.fmt import shown_name
    from tracelens.reports.messages import write_note

    step_count_by_process = _count_steps(trace)
    fatal = trace.endings.filter(pl.col("thread").is_null()).unique("process", keep="first")
    cause_by_process = dict(fatal.select("process", "cause").iter_rows())
    processes = [
        {
            **{name: row[name] for name in ("role", "rank", "host", "pid")},
            "steps": step_count_by_process.get(row["process"], 0),
            "events": row["events"],
            "seconds": _measure_seconds(row["first_ns"], row["last_ns"]),
            **{name: row[name] for name in ("dropped", "complete", "file", "detail")},
            "ended_by": cause_by_process.get(row["process"]),
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
        "notes": [write_note(note) for note in trace.notes],
        "life": _describe_life(trace),
        "recognised": _describe_recognition(trace),
    }


def _count_steps(trace: Trace) -> dict[int, int]:
    """Return the number of steps of each worker, also of earlier attempts, which are not aligned."""
    from tracelens.accounting.life.courses import Course

    earlier_workers = trace.processes.filter(role="worker", main=False, child=False)
    courses = {
        process: Course.read(trace, process)
        for process in earlier_workers["process"]
        if process in trace.source.part_by_process
    }
    step_counts = {
        process: len(course.step) + course.is_in_step
        for process, course in courses.items()
        if course.has_recorded_steps
    }
    return step_counts | dict(trace.steps.group_by("process").len().iter_rows())


def _measure_life(path: Path) -> dict[str, Any] | None:
    """Read the events of a job, and return the uses of its wall time; None if it is unreadable."""
    from tracelens import load
    from tracelens.errors import TraceLensError

    try:
        return _describe_life(load.open(path))
    except TraceLensError:  # its own sentence follows where the trace is analyzed
        return None


def _describe_life(trace: Trace) -> dict[str, Any] | None:
    """Return the uses of the wall time of a job that was restarted or failed; None for others."""
    from tracelens.accounting.life.ledger import measure_life
    from tracelens.analyses.life import sum_shares
    from tracelens.reports.messages import describe_life

    life = None if trace.partial_communicators or trace.is_snapshot else measure_life(trace)
    if life is None:
        return None
    shares = sum_shares(life)
    if shares.attempts == 1 and shares.failure is None:
        return None
    return {"sentence": describe_life(shares), **asdict(shares)}


def _describe_recognition(trace: Trace) -> dict[str, Any] | None:
    """Describe how a trace of another program was recognised; None for a recording of TraceLens."""
    if trace.recognition is None:
        return None
    from tracelens.verdicts.recognised import find_gaps, list_facts

    return {
        "format": trace.recognition.format,
        "found": [{"what": what, "there": there} for what, there in list_facts(trace)],
        "left_out": [{"what": what, "events": count} for what, count in trace.recognition.left_out],
        "not_known": [
            {"missing": gap.missing, "unknown": gap.unknown, "decisive": gap.is_decisive}
            | {"advice": gap.advice}
            for gap in find_gaps(trace)
        ],
    }


def _measure_seconds(first_ns: int | None, last_ns: int | None) -> float | None:
    return None if first_ns is None or last_ns is None else round((last_ns - first_ns) / 1e9, 3)


def _write_facts(facts: dict[str, Any], *, markdown: bool) -> None:
    """Write the facts to standard output, as text or `markdown`; no word can control the terminal."""
    if markdown:
        from tracelens.reports.lines import escape_markdown as escape
    else:
        from tracelens.model.inert import clean as escape

    count, detail = len(facts["processes"]), _write_details(facts["processes"])
    lines = [f"{escape(facts['trace'])}: {count} processes, clocks: {facts['clock']}{detail}"]
    if facts["sampled"]:
        lines.append(f"stacks sampled in {facts['sampled']} processes")
    if facts["devices"]:
        lines.append(_write_devices(facts["devices"]))
    cells = map(_make_cells, facts["processes"])
    rows = [_COLUMNS, *(tuple(map(escape, row)) for row in cells)]
    lines += ["", *(_markdown_table(rows) if markdown else _text_table(rows)), ""]
    life = facts["life"]
    if life and (life["attempts"] > 1 or life["failure"]):
        lines += [escape(f"life: {life['sentence']}"), ""]
    lines += map(escape, _write_recognition(facts.get("recognised")))
    lines += [f"note: {escape(note)}" for note in facts["notes"]]
    sys.stdout.write("\n".join(lines) + "\n")


def _write_recognition(recognition: dict[str, Any] | None) -> list[str]:
    """Write the recognised facts, those left out, and the conclusions that are therefore impossible."""
    if recognition is None:
        return []
    label_width = max(len(fact["what"]) for fact in recognition["found"])
    fact_lines = [
        f"  {fact['what'].ljust(label_width)}  {fact['there']}" for fact in recognition["found"]
    ]
    left_out_lines = [f"  {entry['events']:,} {entry['what']}" for entry in recognition["left_out"]]
    unknown_lines = [
        f"  {gap['unknown']}, as {gap['missing']}. {gap['advice']}"
        for gap in recognition["not_known"]
    ]
    sections = (
        (f"Recognised, as {recognition['format']}:", fact_lines),
        ("Read, and in no span:", left_out_lines),
        ("Not known, so nothing is concluded on it:", unknown_lines),
    )
    return [line for head, body in sections if body for line in (head, *body, "")]


def _make_cells(row: dict[str, Any]) -> tuple[str, ...]:
    pid = "-" if row["pid"] is None else str(row["pid"])
    numbers = (_write_cell(row[name]) for name in _COLUMNS[3:7])
    ending = "completed" if row["complete"] else "truncated"
    ending += f", {row['ended_by']}" if row["ended_by"] else ""
    return (f"{row['role']} {row['rank']}", _write_cell(row["host"]), pid, *numbers, ending)


def _text_table(rows: list[tuple[str, ...]]) -> list[str]:
    from tracelens.model.fmt import align_cells

    head, *body = align_cells(rows)
    return [head, "-" * max(map(len, (head, *body))), *body]


def _markdown_table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|{'---|' * len(rows[0])}", *body]


def _write_details(processes: list[dict[str, Any]]) -> str:
    levels = sorted({row["detail"] for row in processes if row["detail"]}, key=DETAILS.index)
    return f", detail: {', '.join(levels)}" if levels else ""


def _write_devices(clocks: list[dict[str, Any]]) -> str:
    from tracelens.model.fmt import duration

    uncertainty_ns = max(clock["uncertainty_ns"] for clock in clocks)
    return f"{len(clocks)} devices timed, clock uncertainty {duration(uncertainty_ns)}"


def _write_cell(value: object) -> str:
    """Write a value for a table: "-" for None, whole numbers in groups of three digits."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
