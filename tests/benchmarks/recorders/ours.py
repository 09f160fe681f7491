"""TraceLens itself: all its ways to record."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder, nothing
from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument.core.state import STATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["MAIN", "TraceLens"]

MAIN = "with SPAN(nbytes=n):"
SPAN = tl.span("piece", kind="user")


def _with(count: int) -> None:
    for _ in range(count):
        with SPAN:
            pass


def _with_value(count: int) -> None:
    for number in range(count):
        with SPAN(nbytes=number):
            pass


def _with_values(count: int) -> None:
    for number in range(count):
        with SPAN(nbytes=number, seq=number, bucket=3, peer=1):
            pass


def _tokens(count: int) -> None:
    for _ in range(count):
        SPAN.begin().end()


def _tokens_values(count: int) -> None:
    for number in range(count):
        SPAN.begin(nbytes=number, bucket=3).end()


def _complete(count: int) -> None:
    for number in range(count):
        SPAN.complete(1, 2, seq=number)


def _instants(count: int) -> None:
    instant = tl.instant
    for number in range(count):
        instant("piece", nbytes=number)


def _counters(count: int) -> None:
    counter = tl.counter
    for number in range(count):
        counter("loss", number)


def _steps(count: int) -> None:
    for number in range(count):
        with tl.step(number):
            pass


def _traced() -> Arm:
    recorded = tl.traced(nothing)

    def calls(count: int) -> None:
        for _ in range(count):
            recorded()

    return Arm("@tl.traced, beyond the call", calls, less="call")


WAYS = (
    Arm(MAIN, _with_value),
    Arm("with SPAN(4 values):", _with_values),
    Arm("with SPAN:", _with),
    Arm("SPAN.begin() ... token.end()", _tokens),
    Arm("SPAN.begin(2 values) ... token.end()", _tokens_values),
    Arm("SPAN.complete(t0, t1, seq=n)", _complete),
    Arm("tl.instant(name, nbytes=n)", _instants),
    Arm("tl.counter(name, value)", _counters),
    Arm("with tl.step(n):", _steps),
)


class TraceLens(Recorder):
    """What this repository records with, in C or in Python, as TRACELENS_NATIVE says."""

    name = "TraceLens"
    distribution = "tracelens-training"
    start = "import tracelens as tl\ntl.start({folder!r})"

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # `off` asked for what is not recorded
            tl.start(folder)
        self._traced = _traced()

    def arms(self) -> Sequence[Arm]:
        return (*WAYS, self._traced)

    def resume(self) -> None:
        """Do what happens between steps: the pages of the next segment are brought into memory."""
        if STATE.recording is not None:
            STATE.recording.at_step_boundary()

    def close(self) -> None:
        tl.stop()

    @staticmethod
    def count_kept(folder: Path) -> int:
        statuses = read_one(folder).frame["status"]
        return int((statuses == "closed").sum())

    @classmethod
    def disabled_arms(cls) -> Sequence[Arm]:
        return (*WAYS, _traced())
