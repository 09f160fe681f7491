"""Whether the rank that fails first is named, with how it failed, and how soon that is told.

Three gloo ranks train; one of them fails in one of ten ways, at a step that a seed draws. The launcher
runs under `tracelens record`, and `tracelens watch` follows the folder from another process. A job that
hangs is ended by SIGTERM some seconds after it was told, or after a minute. The report of what is left
must name the rank and the kind, and where the rank was in the code.

Run: make bench NAME=failures [PUBLISH=1] [ARGS="--seeds 4"]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from support.launch.recording import clean_environment
from support.launch.torchrun import torchrun_command

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT: Final = "tests/benchmarks/failures.py"
PAGE: Final = "watch.md"
PROGRAM: Final = Path(__file__).parents[1] / "support" / "launch" / "programs" / "failing_rank.py"
RANKS: Final = 3
STEPS: Final = (25, 80)
MAX_S: Final = 60.0
AFTER_ALARM_S: Final = 4.0
# What a report may call each kind.
CAUSES: Final[dict[str, tuple[str, ...]]] = {
    "kill": ("SIGKILL",),
    "segmentation": ("SIGSEGV",),
    "abort": ("SIGABRT",),
    "terminate": ("SIGTERM",),
    "interrupt": ("KeyboardInterrupt", "SIGINT"),
    "stop": ("hang",),
    "gil": ("hang",),
    "exception": ("RuntimeError",),
    "thread": ("hang",),
    "handler": ("TimeoutError",),
}
WITHOUT_STACK: Final = ("kill", "stop")


@dataclass(frozen=True)
class Outcome:
    """What was told of a failure; `told_s` is how long after it, null if never."""

    kind: str
    is_rank_right: bool
    is_kind_right: bool
    is_stack_right: bool
    told_s: float | None


def draw_failures(seeds: int) -> Iterator[tuple[str, int, int]]:
    """Yield kind, rank and step of each failure."""
    for seed in range(seeds):
        for rank in range(RANKS):
            for kind in CAUSES:
                draw = random.Random(f"{kind} {rank} {seed}")
                yield kind, rank, draw.randrange(*STEPS)


def fail(kind: str, rank: int, step: int, folder: Path) -> Outcome:
    """Run a job whose rank fails, and judge what is told of it."""
    trace, failed_file = folder / "trace", folder / "failed"
    launch = torchrun_command(PROGRAM, RANKS, [kind, rank, step, failed_file])
    command = [sys.executable, "-m", "tracelens"]
    environment = clean_environment(OMP_NUM_THREADS="1")
    with (folder / "watch.jsonl").open("w") as watched, (folder / "job.txt").open("w") as output:
        record = subprocess.Popen(
            [*command, "record", "--no-verdict", "--out", trace, "--", *launch],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        watch = subprocess.Popen(
            [*command, "watch", "--json", trace], env=environment, stdout=watched, stderr=output
        )
        _await_end(record, folder / "watch.jsonl", failed_file)
        try:
            watch.wait(30)
        except subprocess.TimeoutExpired:
            watch.terminate()
            watch.wait()
    analyze = [*command, "analyze", "--no-keep", "--format", "json", str(trace)]
    done = subprocess.run(analyze, env=environment, capture_output=True, check=False)
    report = json.loads(done.stdout) if done.returncode == 0 else {"findings": []}
    failed_ns = int(failed_file.read_text()) if failed_file.exists() else 0
    return _judge(kind, rank, report, failed_ns, _read_alarms(folder / "watch.jsonl"))


def _await_end(record: subprocess.Popen[bytes], watched: Path, failed_file: Path) -> None:
    """Wait for the job's end; end it if it hangs, some seconds after the alarm."""
    began_s = time.monotonic()
    alarm_s: float | None = None
    while record.poll() is None:
        time.sleep(0.2)
        now_s = time.monotonic()
        if alarm_s is None and any(one["kind"] == "stacks" for one in _read_alarms(watched)):
            alarm_s = now_s
        is_told = alarm_s is not None and now_s - alarm_s > AFTER_ALARM_S
        if is_told or (failed_file.exists() and now_s - began_s > MAX_S):
            record.send_signal(signal.SIGTERM)
            try:
                record.wait(45)
            except subprocess.TimeoutExpired:
                os.killpg(record.pid, signal.SIGKILL)
                record.wait()


def _read_alarms(watched: Path) -> list[dict[str, Any]]:
    alarms = []
    for line in watched.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # it is being written
            continue
        if row["kind"] in {"stalled", "stacks", "exited"}:
            alarms.append(row)
    return alarms


def _judge(
    kind: str, rank: int, report: dict[str, Any], failed_ns: int, alarms: list[dict[str, Any]]
) -> Outcome:
    first: dict[str, Any] = next(iter(report["findings"]), {})
    evidence = first.get("evidence", {})
    told = {first.get("kind"), evidence.get("cause")}
    frames = [
        *evidence.get("frames", []),
        str(first.get("function") or ""),
        first.get("sentence", ""),
    ]
    told_ns = next((one["at_ns"] for one in alarms if _names(one, rank)), None)
    return Outcome(
        kind,
        first.get("ranks") == [rank],
        bool(told & set(CAUSES[kind])),
        kind in WITHOUT_STACK or any("work (" in frame for frame in frames),
        None if told_ns is None else (told_ns - failed_ns) / 1e9,
    )


def _names(alarm: dict[str, Any], rank: int) -> bool:
    """Return True if an alarm names the rank as the one that failed or is awaited."""
    if alarm["kind"] == "exited":
        return bool(alarm["rank"] == rank and alarm.get("code") != 0)
    return bool(alarm.get("culprits") == [rank])


def main() -> int:
    """Make the failures, judge them, and print the table; 1 if too few are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", choices=CAUSES)
    parser.add_argument("--keep", type=Path, help="keep what jobs leave here")
    parser.add_argument("--publish", action="store_true", help=f"write the table into docs/{PAGE}")
    arguments = parse_quick(parser, seeds=1, only="exception")
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, (kind, rank, step) in enumerate(draw_failures(arguments.seeds)):
            if arguments.only in {None, kind}:
                folder = (arguments.keep or Path(temporary)) / f"{number:03}-{kind}-{rank}-{step}"
                folder.mkdir(parents=True)
                outcomes.append(fail(kind, rank, step, folder))
                sys.stderr.write(f"{folder.name}: {outcomes[-1]}\n")
    text = describe(outcomes)
    sys.stdout.write(f"{text}\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)
    right = sum(one.is_rank_right for one in outcomes)
    return int(right < 0.97 * len(outcomes))


def describe(outcomes: list[Outcome]) -> str:
    """Return the table of outcomes by kind."""
    rows = []
    for kind in [*CAUSES, "all"]:
        chosen = [one for one in outcomes if kind in {one.kind, "all"}]
        if chosen:
            told_s = [one.told_s for one in chosen if one.told_s is not None]
            rows.append(
                (
                    kind,
                    str(len(chosen)),
                    str(sum(one.is_rank_right for one in chosen)),
                    str(sum(one.is_kind_right for one in chosen)),
                    str(sum(one.is_stack_right for one in chosen)),
                    f"{len(told_s)}: {statistics.median(told_s):.1f} s" if told_s else "0",
                    f"{max(told_s):.1f} s" if told_s else "",
                )
            )
    head = (
        "failure",
        "jobs",
        "rank right",
        "kind right",
        "stack right",
        "told live, median",
        "longest",
    )
    return table(f"{len(outcomes)} failures of three gloo ranks", head, rows)


if __name__ == "__main__":
    sys.exit(main())
