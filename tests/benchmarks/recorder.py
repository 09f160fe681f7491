"""What recording costs, as ratios: each arm against two clock reads and a list append, written inline.

Arms run in turns, so that a busy machine slows all alike; what counts is the median thread CPU time
of a span, less that of an empty loop. Ratios carry over between machines, nanoseconds do not. Both
recorders, in C and in Python, are measured in processes of their own that take turns. Between arms
comes what training does between steps: the pages of the next segment are brought into memory.

Run: python tests/benchmarks/recorder.py [rounds]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import tracelens as tl
from tracelens_instrument.backend import backend
from tracelens_instrument.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    Arm = Callable[[int], None]
    Found = dict[str, dict[str, float]]

TURNS = 3
SPANS = 2000
SPAN = tl.span("piece", kind="user")


def empty(count: int) -> None:
    for _ in range(count):
        pass


def inline(count: int) -> None:
    """Note name, step, bytes, start and end in a list: the least that anybody could do by hand."""
    clock = time.perf_counter_ns
    found: list[tuple[str, int, int, int, int]] = []
    for number in range(count):
        start = clock()
        found.append(("piece", number, 4096, start, clock()))


def plain_call(count: int) -> None:
    for _ in range(count):
        nothing()


def with_span(count: int) -> None:
    for _ in range(count):
        with SPAN:
            pass


def with_values(count: int) -> None:
    for number in range(count):
        with SPAN(nbytes=number):
            pass


def with_many_values(count: int) -> None:
    for number in range(count):
        with SPAN(nbytes=number, seq=number, bucket=3, peer=1):
            pass


def begin_end(count: int) -> None:
    for _ in range(count):
        SPAN.begin().end()


def begin_end_values(count: int) -> None:
    for number in range(count):
        SPAN.begin(nbytes=number, bucket=3).end()


def complete(count: int) -> None:
    for number in range(count):
        SPAN.complete(1, 2, seq=number)


def steps(count: int) -> None:
    for number in range(count):
        with tl.step(number):
            pass


def nothing() -> None:
    pass


def measure(arms: dict[str, Arm], rounds: int) -> dict[str, float]:
    """Median nanoseconds of thread CPU time per span."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            if STATE.recording is not None:
                STATE.recording.at_step_boundary()
            before = time.thread_time_ns()
            arm(SPANS)
            times[name].append((time.thread_time_ns() - before) / SPANS)
    return {name: statistics.median(found) for name, found in times.items()}


def one(rounds: int) -> Found:
    """Measure the recorder that this process uses: first switched off, then on."""
    common: dict[str, Arm] = {"empty": empty, "inline": inline, "call": plain_call}
    forms: dict[str, Arm] = {
        "with SPAN": with_span,
        "with SPAN(nbytes=)": with_values,
        "with SPAN(4 values)": with_many_values,
        "begin / end": begin_end,
        "begin(2 values) / end": begin_end_values,
        "complete": complete,
        "step": steps,
    }
    found = {"off": measure(common | forms, rounds)}
    with tempfile.TemporaryDirectory() as folder:
        tl.start(folder)
        recorded = tl.traced(nothing)

        def traced_call(count: int) -> None:
            for _ in range(count):
                recorded()

        found["on"] = measure(common | forms | {"traced, less the call": traced_call}, rounds)
        assert STATE.recording is not None
        tl.stop()
    return found


def both(rounds: int) -> dict[str, Found]:
    """Measure both recorders in processes of their own, in turns; by round the median counts."""
    asked = {"native": "1", "python": "0"}
    found: dict[str, list[Found]] = {name: [] for name in asked}
    for _ in range(TURNS):
        for name, switch in asked.items():
            command = [sys.executable, __file__, str(rounds), "--one"]
            environment = os.environ | {"TRACELENS_NATIVE": switch}
            done = subprocess.run(command, env=environment, capture_output=True, check=True)
            used, measured = json.loads(done.stdout)
            if used == name:
                found[name].append(measured)
    return {name: middle(turns) for name, turns in found.items() if turns}


def middle(turns: list[Found]) -> Found:
    return {
        mode: {arm: statistics.median(turn[mode][arm] for turn in turns) for arm in arms}
        for mode, arms in turns[0].items()
    }


def report(mode: str, found: dict[str, Found]) -> None:
    heads = "".join(f"{name + ' ns':>12}{'ratio':>8}" for name in found)
    sys.stdout.write(f"\n{mode:28}{heads}\n")
    for arm in next(iter(found.values()))[mode]:
        cells = "".join(cell(measured[mode], arm) for measured in found.values())
        sys.stdout.write(f"{arm:28}{cells}\n")


def cell(times: dict[str, float], arm: str) -> str:
    less = times["call"] if arm == "traced, less the call" else times["empty"]
    spent = times[arm] - less
    return f"{spent:12.0f}{spent / (times['inline'] - times['empty']):8.2f}"


def main(arguments: list[str]) -> None:
    rounds = int(arguments[0]) if arguments else 21
    if "--one" in arguments:
        json.dump((backend()[0], one(rounds)), sys.stdout)
        return
    found = both(rounds)
    for mode in ("off", "on"):
        report(mode, found)


if __name__ == "__main__":
    main(sys.argv[1:])
