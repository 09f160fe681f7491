"""`tracelens convert`: a run, or a part of it, as a trace folder, a table, or for a viewer."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens.cli.opening import add_memory, add_trace, matched, open_joined, progress
from tracelens.errors import InvalidArgument
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    import argparse

    from tracelens.exports.content import Choice, Content, Saved
    from tracelens.exports.down_sampling import Flagged
    from tracelens.model.trace import Trace

NAME: Final = "convert"
HELP: Final = "write a run, or a part of it, as a trace folder, a table, or for ui.perfetto.dev"
EXAMPLES: Final = """\
  tracelens convert traces/today --to perfetto
  tracelens convert traces/today --to perfetto --ranks 0-3,41 --steps 200-260 --out late.json
  tracelens convert traces/today --to native --keep flagged --out traces/small
  tracelens convert traces/today --to parquet --anonymize --out shared.parquet
  tracelens convert s3://bucket/run --to native --out traces/run
  tracelens convert traces/host0 traces/host1 --to native --out traces/whole
"""
FORMATS: Final = ("native", "parquet", "perfetto", "csv")
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)")
_MOST_STEPS: Final = 2**31


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    add_trace(parser, nargs="+", also="several folders of one run, or a pattern of them")
    add_memory(parser)
    parser.add_argument("--to", choices=FORMATS, required=True, help="format to write")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="default: RUN.parquet and the like"
    )
    parser.add_argument("--ranks", help="worker ranks, such as 0-3,41 (default: all, and shards)")
    parser.add_argument("--steps", help="steps, such as 200-260 (default: all)")
    parser.add_argument(
        "--time", metavar="FROM-TO", help="seconds from the run's begin, such as 12.5-20"
    )
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
    from tracelens.exports import EXPORTS
    from tracelens.exports.content import of_trace

    _checked(arguments)
    sources = matched(arguments.trace)
    trace = open_joined(arguments, sources)
    content = of_trace(
        trace,
        _choice(arguments, trace),
        kept=_flagged(trace) if arguments.keep else None,
        anonymous=arguments.anonymize,
        sources=sources,
    )
    export = EXPORTS[arguments.to]
    place = arguments.out or Path(content.name + export.SUFFIX)
    saved = export.save(content, place)
    sys.stdout.write(_report(content, saved, place, export.OPEN_WITH))
    return 0


def _checked(arguments: argparse.Namespace) -> None:
    """Refuse options that mean nothing before the run is read."""
    for option in ("ranks", "steps", "time"):
        text = getattr(arguments, option)
        if text is not None:
            _seconds(text) if option == "time" else _ranges(text, f"--{option}")


def _choice(arguments: argparse.Namespace, trace: Trace) -> Choice:
    from tracelens.exports.content import Choice, begin_of
    from tracelens.model.fmt import series

    window = None
    if arguments.time:
        begin, (first, last) = begin_of(trace), _seconds(arguments.time)
        window = (begin + round(first * 1e9), begin + round(last * 1e9))
    asked = [
        f"{name} {text}{unit}"
        for name, text, unit in (
            ("ranks", arguments.ranks, ""),
            ("steps", arguments.steps, ""),
            ("times", arguments.time, " s"),
        )
        if text
    ]
    return Choice(
        ranks=_ranges(arguments.ranks, "--ranks") if arguments.ranks else None,
        steps=_ranges(arguments.steps, "--steps") if arguments.steps else None,
        window=window,
        asked=series(asked) if asked else "",
    )


def _flagged(trace: Trace) -> Flagged:
    from tracelens.analyses import analyze
    from tracelens.exports.down_sampling import flagged

    with progress("analyzing") as on_progress:
        return flagged(trace, analyze(trace, progress=on_progress).findings)


def _report(content: Content, saved: Saved, place: Path, open_with: str) -> str:
    """Return what was written, what is not in it, and what opens it."""
    from tracelens.model.fmt import count, shown_name, size

    lines = [*content.notes]
    if saved.summed_up:
        lines.append(
            f"Summed up: {count(saved.summed_up, 'event')}, in {count(saved.sums, 'span')}."
        )
    name = shown_name(place)
    lines += [*saved.notes, f"wrote {name}: {count(saved.events, 'event')}, {size(saved.nbytes)}"]
    return "\n".join([*lines, f"open it with {open_with.format(place=name)}"]) + "\n"


def _ranges(text: str, option: str) -> tuple[tuple[int, int], ...]:
    """Read ``0-3,41``."""
    most = MOST_RANKS if option == "--ranks" else _MOST_STEPS
    found = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < most:
            raise InvalidArgument(f"{option} {text}: expected numbers such as 3, 0-7 or 0-3,41.")
        found.append((first, last))
    return tuple(sorted(found))


def _seconds(text: str) -> tuple[float, float]:
    """Read ``12.5-20``."""
    match = _TIME.fullmatch(text.strip())
    first, last = (float(match[1]), float(match[2])) if match else (1.0, 0.0)
    if not first < last < 1e9:
        raise InvalidArgument(
            f"--time {text}: expected seconds from the run's begin, such as 12.5-20, the earlier first."
        )
    return first, last
