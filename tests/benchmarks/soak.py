"""Whether a long recording, and looking at it all the while, stay small and quiet.

Two runs are recorded, by three processes: one of all spans, one of the last steps, at ten times the
rate of a busy training (2,000 spans a second), so that an hour turns over as many segments as ten. Of
the second one a report is made every half minute, and a dashboard on it and on ten other runs is polled
all the while: as it keeps eight of them open, each is opened anew in each round, and the one that is
recorded is read anew. From outside, every few seconds: memory of their own (not pages of files, which
are the kernel's to write and drop) and descriptors of whoever records, converts and serves; files and
bytes. In the end every span that was to be kept must be there, once.

Run: make soak [PUBLISH=1] [ARGS="--seconds 600"]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.resident import resident
from benchmarks.soaking.onlookers import Report, polling, report
from benchmarks.soaking.recording import SPANS, missing, recording, wait_for_the_rest
from benchmarks.soaking.trend import WARM_UP, trend
from support.launch.converters import converters_of
from support.launch.patience import wait_until
from support.web.browser import serving

from tracelens_dashboard.runs.catalog import id_of

if TYPE_CHECKING:
    import subprocess

PAGE: Final = "reliability.md"
SCRIPT: Final = "tests/benchmarks/soak.py"
SAMPLES: Final = Path(__file__).parents[2] / "sample_traces"
OTHERS: Final = 10  # runs, beside the one that is recorded: more than a dashboard keeps open
LAST: Final = 500  # steps that the second run keeps
REPORTS_S: Final = 30.0
SHORTEST_S: Final = 180
MIB: Final = 1 << 20
HEADS: Final = ("of", "what", "median", "in an hour (95 %)", "flat")


class Value(NamedTuple):
    """What was seen at one moment."""

    second: float
    value: float


Series = dict[tuple[str, str], list[Value]]


def main() -> None:
    """Record, look on, and check."""
    options = arguments()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        recent, full = folder / "runs" / "recent", folder / "whole" / "run"
        copies = _copy_runs(folder / "runs")
        ranks = {
            "rank, all spans": recording(full, options.rate, options.seconds, "all"),
            "rank 0, last steps": recording(
                recent, options.rate, options.seconds, f"last:{LAST}", (0, 2)
            ),
            "rank 1, last steps": recording(
                recent, options.rate, options.seconds, f"last:{LAST}", (1, 2)
            ),
        }
        wait_until(lambda: len(list(recent.glob("*.segments"))) == 2)
        served = [id_of(run) for run in (recent, *copies)]
        with (
            serving(recent.parent) as (url, server),
            polling(url, served, folder / "answers"),
        ):
            series, reports = look_on(ranks, server, full, recent, options.every)
        steps = {name: int(rank.communicate()[0].split()[0]) for name, rank in ranks.items()}
        wait_for_the_rest(full)
        wait_for_the_rest(recent)
        lost = _count_lost(full, recent, list(steps.values()))
        answers = Counter(line.split()[0] for line in (folder / "answers").read_text().splitlines())
    text, well = sum_up(series, reports, answers, lost, sum(steps.values()) * (SPANS + 1))
    say(text)
    if options.publish:
        publish(PAGE, SCRIPT, text)
    sys.exit(not well)


def _copy_runs(runs: Path) -> list[Path]:
    """Copy recorded runs, so that they are served beside the one that grows."""
    found = sorted(path for path in SAMPLES.iterdir() if path.is_dir())[:OTHERS]
    return [Path(shutil.copytree(path, runs / path.name)) for path in found]


def look_on(
    ranks: dict[str, subprocess.Popen[str]], server: int, full: Path, recent: Path, every_s: float
) -> tuple[Series, list[Report]]:
    """Look while they record, and print what is seen."""
    start_s, next_report = time.monotonic(), 0.0
    series: Series = defaultdict(list)
    reports: list[Report] = []
    while all(rank.poll() is None for rank in ranks.values()):
        time.sleep(every_s)
        second = time.monotonic() - start_s
        pids = {name: rank.pid for name, rank in ranks.items()} | {"dashboard": server}
        converting = [pid for run in full.glob("*.segments") for pid in converters_of(run)]
        pids |= dict(zip(["converter"], converting, strict=False))
        for name, pid in pids.items():
            try:
                state = {"MiB": resident(pid)[0] / MIB, "descriptors": descriptors_of(pid)}
            except (OSError, KeyError):  # it has just ended
                continue
            for quantity, value in state.items():
                series[name, quantity].append(Value(second, value))
        for name, run in (("all spans", full), ("last steps", recent)):
            files, size = size_of(run)
            series[f"folder, {name}", "files"].append(Value(second, files))
            if name == "last steps":  # the other one grows with its spans
                series[f"folder, {name}", "MiB"].append(Value(second, size / MIB))
        if second >= next_report:
            reports.append(report(recent, start_s))
            next_report = second + REPORTS_S
        say(
            ", ".join(
                f"{of} {values[-1].value:.0f} {quantity}"
                for (of, quantity), values in series.items()
            )
        )
    return series, reports


def descriptors_of(pid: int) -> int:
    """Count the open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def size_of(folder: Path) -> tuple[int, int]:
    """Count the files of a trace, and their bytes; some go while they are counted."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except OSError:
            continue
    return len(sizes), sum(sizes)


def _count_lost(whole: Path, recent: Path, steps: list[int]) -> int:
    """Count the spans that were to be kept, and are not there exactly once."""
    (path,) = whole.glob("*.arrow")
    files = sorted(recent.glob("*.arrow"))
    lasting = zip(files, steps[1:], strict=True)
    return missing(path, steps[0]) + sum(missing(file, count, LAST) for file, count in lasting)


def sum_up(
    series: Series, reports: list[Report], answers: Counter[str], lost: int, spans: int
) -> tuple[str, bool]:
    """Sum it up; also whether all is as it should be."""
    rows, well = (
        [],
        lost == 0 and set(answers) == {"200"} and not any(report.code for report in reports),
    )
    series = series | {
        ("reports", "MiB"): [Value(report.second, report.memory / MIB) for report in reports]
    }
    for (name, quantity), values in series.items():
        slope = trend(*zip(*values, strict=True))
        well = well and slope.flat
        grown = f"{slope.slope:+.2f} ({slope.low:+.2f} to {slope.high:+.2f})"
        rows.append(
            [name, quantity, f"{slope.median:.1f}", grown, "yes" if slope.flat else "**no**"]
        )
    seconds = max(values[-1].second for values in series.values())
    failed = sum(answers.values()) - answers["200"]
    text = table(f"{seconds / 60:.0f} minutes", HEADS, rows)
    return (
        f"{text}\n\nThree processes recorded {spans:,} spans. Of the spans that were to be kept, {lost} "
        f"were lost or occur twice. {len(reports)} reports of the run that was recorded, "
        f"{sum(report.code != 0 for report in reports)} failed, "
        f"the longest took {max(report.took_s for report in reports):.1f} s; {answers['200']:,} "
        f"answers of the dashboard, {failed} errors. Medians and slopes are those after the first "
        f"{WARM_UP:.0%} of the time."
    ), well


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=int, default=20_000, help="spans a second of each process")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--dir", help="where to record (default: the folder for temporary files)")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parse_quick(parser, seconds=6.0, rate=2000, every=0.5)
    if options.seconds < SHORTEST_S and not options.quick:
        parser.error(
            f"{options.seconds:g} s: expected {SHORTEST_S} or more, as less tells no trend"
        )
    return options


if __name__ == "__main__":
    main()
