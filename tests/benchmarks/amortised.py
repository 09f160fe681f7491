"""What a span costs with all that goes with it: means over 10^5 spans in steps of 10, 100 and 1,000.

Inside what is measured are `tl.step` around each step, changes of segments, and pages that come into
memory: nothing is prepared beforehand, and the CPU time of all threads of the process counts. The
yardstick is two clock reads and an append to one list that grows, without any steps. All ways take turns
in a process, in an order drawn anew each round; a repeat is a process of its own, and its figure the
median of its rounds' ratios.

Run: make bench NAME=amortised [PUBLISH=1] [ARGS="--repeats N"]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish, table
from benchmarks.quick import parse_quick
from benchmarks.recorder import last_line

import tracelens as tl
from tracelens_instrument.core.backend import backend

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT: Final = "tests/benchmarks/amortised.py"
PAGE: Final = "benchmarks.md"
SIZES: Final = (10, 100, 1000)
ROUNDS: Final = 3
SPAN: Final = tl.span("piece")
BOUNDS: Final = {
    "with SPAN(nbytes=n):": 0.80,
    "with SPAN:": 0.70,
    "SPAN.begin() ... token.end()": 0.55,
}
MADE: Final = 'with tl.span("s", kind="forward"):'
AIM_OF_MADE: Final = 3.0
SWITCHES: Final = {"native": "1", "python": "0"}


def _with_value(count: int) -> None:
    for number in range(count):
        with SPAN(nbytes=number):
            pass


def _with(count: int) -> None:
    for _ in range(count):
        with SPAN:
            pass


def _tokens(count: int) -> None:
    for _ in range(count):
        SPAN.begin().end()


def make_spans(count: int) -> None:
    for _ in range(count):
        with tl.span("s", kind="forward"):
            pass


WAYS: Final[dict[str, Callable[[int], None]]] = {
    "with SPAN(nbytes=n):": _with_value,
    "with SPAN:": _with,
    "SPAN.begin() ... token.end()": _tokens,
    MADE: make_spans,
}


def _recorded(way: Callable[[int], None], size: int, spans: int) -> None:
    for number in range(spans // size):
        with tl.step(number):
            way(size)


def _steps(spans: int) -> None:
    for number in range(spans):
        with tl.step(number):
            pass


def _inline(size: int, spans: int) -> None:
    clock = time.perf_counter_ns
    events: list[tuple[str, int, int, int, int]] = []
    for _ in range(spans // size):
        for number in range(size):
            start = clock()
            events.append(("piece", number, 4096, start, clock()))


def _cpu_ns(work: Callable[[], None], spans: int) -> float:
    """Return the CPU time of this process for each of the `spans` that `work` makes."""
    before = time.process_time_ns()
    work()
    return (time.process_time_ns() - before) / spans


def measure_here(spans: int) -> None:
    """Measure in this process, and print the median ratio of each way and size, and nanoseconds."""
    ratios: dict[str, list[float]] = {}
    inline: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        tl.start(folder)
        for number in range(ROUNDS + 1):
            for name, values in _round(inline, spans).items():
                if number:  # the first round warms up
                    ratios.setdefault(name, []).append(values)
        tl.stop()  # with its conversion, which else would disturb the next process
    found = {name: statistics.median(values) for name, values in ratios.items()}
    sys.stdout.write(f"\n{json.dumps((backend()[0], found, statistics.median(inline)))}\n")


def _round(inline: list[float], spans: int) -> dict[str, float]:
    ratios = {}
    for size in SIZES:
        base = _cpu_ns(partial(_inline, size, spans), spans)
        inline.append(base)
        for name in random.sample(list(WAYS), len(WAYS)):
            recorded = partial(_recorded, WAYS[name], size, spans)
            ratios[f"{name}|{size}"] = _cpu_ns(recorded, spans) / base
        ratios[f"with tl.step(n):|{size}"] = _cpu_ns(partial(_steps, spans), spans) / base
    return ratios


def report(repeats: int, spans: int) -> str:
    """Measure in processes of their own, both recorders in turns, and return the tables."""
    ratios_by_switch: dict[str, dict[str, list[float]]] = {name: {} for name in SWITCHES}
    inline: dict[str, list[float]] = {name: [] for name in SWITCHES}
    for _ in range(repeats):
        for switch in SWITCHES.values():
            command = [sys.executable, __file__, "--one", "--spans", str(spans)]
            line = last_line(command, os.environ | {"TRACELENS_NATIVE": switch})
            used, ratios, ns = json.loads(line)
            inline[used].append(ns)
            for name, ratio in ratios.items():
                ratios_by_switch[used].setdefault(name, []).append(ratio)
    return "\n\n".join(
        _table(name, ratios, statistics.median(inline[name]), spans)
        for name, ratios in ratios_by_switch.items()
        if ratios
    )


def _table(name: str, found: dict[str, list[float]], ns: float, spans: int) -> str:
    head = ["a span by", *(f"steps of {size:,}" for size in SIZES), "bound", "held"]
    body = []
    for way in ("with tl.step(n):", *WAYS):
        cells = [found[f"{way}|{size}"] for size in SIZES]
        bound = {MADE: AIM_OF_MADE, **BOUNDS}.get(way) if name == "native" else None
        verdict = (
            "" if bound is None else "yes" if statistics.median(cells[1]) <= bound else "**no**"
        )
        said = "" if bound is None else f"<= {bound:.2f}"
        label = "`with tl.step(n):`, empty" if way not in WAYS else f"`{way}`"
        body.append([label, *map(_write_spread, cells), said, verdict])
    title = f"Amortised, {name}: means of {spans:,} spans, of inline ({ns:.0f} ns)"
    return table(title, head, body)


def _write_spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure, print, and publish if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--spans", type=int, default=100_000, help="of each way and size")
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--one", action="store_true", help="measure in this process")
    arguments = parse_quick(parser, repeats=1, spans=1000)
    if arguments.one:
        measure_here(arguments.spans)
        return
    text = report(arguments.repeats, arguments.spans)
    sys.stdout.write(text + "\n")
    if arguments.publish:
        publish(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
