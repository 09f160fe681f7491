"""What recording costs, as ratios: each arm against two clock reads and a list append, written inline.

Arms run in turns, so that a busy machine slows all alike; what counts is the median thread CPU time
of a span, less that of an empty loop. Ratios carry over between machines, nanoseconds do not.

Run: python tests/benchmarks/recorder.py [rounds]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import tracelens as tl
from tracelens_instrument.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    Arm = Callable[[int], None]

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
            before = time.thread_time_ns()
            arm(SPANS)
            times[name].append((time.thread_time_ns() - before) / SPANS)
    return {name: statistics.median(found) for name, found in times.items()}


def report(title: str, found: dict[str, float]) -> None:
    base = found["inline"] - found["empty"]
    sys.stdout.write(f"\n{title:28}{'ns':>8}{'ratio':>8}\n")
    for name, spent in found.items():
        less = found["call"] if name == "traced, less the call" else found["empty"]
        sys.stdout.write(f"{name:28}{spent - less:8.0f}{(spent - less) / base:8.2f}\n")


def main(rounds: int) -> None:
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
    report("off", measure(common | forms, rounds))
    with tempfile.TemporaryDirectory() as folder:
        tl.start(folder)
        recorded = tl.traced(nothing)

        def traced_call(count: int) -> None:
            for _ in range(count):
                recorded()

        report("on", measure(common | forms | {"traced, less the call": traced_call}, rounds))
        assert STATE.recording is not None
        tl.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 41)
