"""`tracelens convert`: a run, or a part of it, as a trace folder, a table, or for a viewer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli import runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from tracelens.exports.content import Content, Saved
    from tracelens.exports.down_sampling import Flagged
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

NAME: Final = "convert"
HELP: Final = "write a run, or a part of it, as a trace folder, a table, or for ui.perfetto.dev"
EXAMPLES: Final = """\
  tracelens convert traces/today --to perfetto
  tracelens convert profiles/ --to perfetto_manifest    # offsets of clocks, for your own trace files
  tracelens convert traces/today --to perfetto --ranks 0-3,41 --steps 200-260 --out late.json
  tracelens convert traces/today --to native --keep flagged --out traces/small
  tracelens convert traces/today --to parquet --anonymize --out shared.parquet
  tracelens convert traces/today --to speedscope    # stacks that were sampled
  tracelens convert traces/today --to otlp --steps 200-210    # for an OpenTelemetry collector
  tracelens convert s3://bucket/run --to native --out traces/run
  tracelens convert traces/host0 traces/host1 --to native --out traces/whole
"""
FORMATS: Final = (
    *("native", "parquet", "perfetto", "perfetto_manifest", "csv", "otlp", "speedscope"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    runs.add_trace(parser, nargs="+", also="several folders of one run, or a pattern of them")
    runs.add_memory(parser)
    parser.add_argument("--to", choices=FORMATS, required=True, help="format to write")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="default: RUN.parquet and the like"
    )
    runs.add_choice(parser, time="what reaches into it")
    parser.add_argument(
        "--keep",
        choices=("flagged",),
        help="keep the ranks and steps that findings name, and sum up the rest: a span for each rank, "
        "step, thread, kind and operation (docs/convert.md)",
    )
    parser.add_argument(
        "--anonymize",
        action="store_true",
        help="replace the names of hosts, users, jobs and paths by numbered ones",
    )


def run(arguments: argparse.Namespace) -> int:
    """Open, choose, write, and report what was written."""
    choice = runs.parse_choice(arguments)
    from tracelens.exports import EXPORTS
    from tracelens.exports.content import select_content
    from tracelens.model.choice import Choice

    sources, memory = runs.match_paths(arguments.trace), runs.parse_memory(arguments)
    report = _find_report(arguments, sources) if arguments.keep else None
    # What findings name is that of the whole run.
    read_choice = Choice() if arguments.keep else Choice(rank_ranges=choice.rank_ranges)
    # Each process is read once more to be written, which what is kept between passes does not help.
    is_explaining = arguments.keep and report is None
    trace = runs.open_joined(
        arguments, sources, choice=read_choice, memory=memory if is_explaining else 0
    )
    content = select_content(
        trace,
        choice,
        flagged=_find_flagged(trace, report, memory) if arguments.keep else None,
        anonymous=arguments.anonymize,
        sources=sources,
    )
    export = EXPORTS[arguments.to]
    target = arguments.out or Path(content.name + export.SUFFIX)
    saved = export.save(content, target)
    sys.stdout.write(_describe(content, saved, target, export.OPEN_WITH))
    return 0


def _find_report(arguments: argparse.Namespace, sources: Sequence[Path]) -> Report | None:
    """Return the report of the run, if one was kept."""
    from tracelens.distil import kept_report

    is_whole_run = len(sources) == 1 and not runs.has_options(arguments)
    return kept_report.find(sources[0]) if is_whole_run else None


def _find_flagged(trace: Trace, report: Report | None, memory: int) -> Flagged:
    """Find the steps to keep, by the report, which is made if none was kept."""
    from tracelens.exports.down_sampling import find_flagged

    if report is None:
        from tracelens.verdicts.report import analyze

        with runs.show_progress("analyzing") as on_progress:
            report = analyze(trace, on_progress, memory=memory)
    return find_flagged(trace, report.findings)


def _describe(content: Content, saved: Saved, target: Path, open_with: str) -> str:
    """Describe the output, the data that is not in it, and the program that opens it."""
    from tracelens.model.fmt import count, shown_name, size

    lines = [*content.notes]
    if saved.summed_up_count:
        lines.append(
            f"Summed up: {count(saved.summed_up_count, 'event')}, in {count(saved.sum_count, 'span')}."
        )
    name = shown_name(target)
    lines += [
        *saved.notes,
        f"wrote {name}: {count(saved.event_count, 'event')}, {size(saved.size_bytes)}",
    ]
    return "\n".join([*lines, f"open it with {open_with.format(place=name)}"]) + "\n"
