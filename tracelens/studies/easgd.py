"""You, Buluc & Demmel 2017 (arXiv:1708.02983, SC'17): what the methods of the EASGD family communicate.

The original serves its P workers in turn: a pass takes P (c + m), with c computing and m communicating
of an iteration. Sync EASGD 1 has all compute together and joins them in a tree: c + log2(P) m. It
says 87 % communication for the original, 14 % for Sync 3 and a speedup of 5.3; of these Sync 1, 2 and 3
bring 3.7, 1.3 and 1.1.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from math import log2
from operator import mul
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting import phases
from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.simulator.scenario import MILLISECOND
from tracelens.studies.figures import Figure, Section, Study
from tracelens.verdicts.whatif import whatif

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

PAPER: Final = "You, Buluc & Demmel 2017, arXiv:1708.02983 (SC'17)"
# share of an iteration: the original communicates as long [You, Buluc & Demmel 2017; one decision
# in _ask_tree, _ask_totals]
_ORIGINAL_COMMUNICATION: Final = 0.87
# share of an iteration: Sync 3 communicates as long [You, Buluc & Demmel 2017]
_SYNC3_COMMUNICATION: Final = 0.14
# times: speedup of Sync 1 over the original, 2 over 1, 3 over 2 [You, Buluc & Demmel 2017]
_SPEEDUPS: Final = (3.7, 1.3, 1.1)
_WORKERS: Final = (4, 8, 16)  # workers: speedups are computed for these [chosen]
_SOURCES: Final = (
    "An original iteration is the unit of time: 0.13 computing, 0.87 communicating, as published.",
    "A tree's level is taken to cost what serving one worker does: assumed.",
    "The paper's own text was not read beyond its abstract.",
)
# What workers do for the exchange, by operation.
_EXCHANGE_PARTS: Final = {
    "turn_wait": "waiting for the turn",
    "weights_down": "weights down under way",
    "weights_up": "weights up under way",
}


def study() -> Study:
    """Compute."""
    return Study("easgd", PAPER, (_ask_tree(), _ask_totals()), _SOURCES)


def _ask_tree() -> Section:
    """Compute the speedup by a tree instead of turns, in units of an original iteration."""
    compute_share = 1 - _ORIGINAL_COMMUNICATION
    figures = []
    for workers in _WORKERS:
        speedup = workers / (compute_share + log2(workers) * _ORIGINAL_COMMUNICATION)
        name = f"Sync 1 over the original, {workers} workers"
        figures.append(Figure(name, speedup, "x", "assumed", published="3.7 x"))
    return Section(
        "Does a tree instead of turns explain the first step?",
        tuple(figures),
        "Of 8 workers it gives four fifths of it; the rest is not the number of messages.",
    )


def _ask_totals() -> Section:
    """Derive the time of iterations from the published shares and speedups."""
    # Times are in units of an original iteration.
    total_speedups = list(accumulate(_SPEEDUPS, mul))  # over the original
    sync3_iteration = 1 / total_speedups[-1]
    sync3_compute = sync3_iteration * (1 - _SYNC3_COMMUNICATION)
    compute_ratio = sync3_compute / (1 - _ORIGINAL_COMMUNICATION)
    names = ("Sync 1", "Sync 2", "Sync 3")
    figures = [
        *(
            Figure(f"{name}, iteration", 1 / speedup, unit="", tag="derived")
            for name, speedup in zip(names, total_speedups, strict=True)
        ),
        Figure(
            "Sync 3, communicating", sync3_iteration * _SYNC3_COMMUNICATION, unit="", tag="derived"
        ),
        Figure("Sync 3, computing", sync3_compute, unit="", tag="derived"),
        Figure("computing, Sync 3 / original", compute_ratio, "x", "derived"),
    ]
    for name, value, unit, published in (
        ("communication of the original", _ORIGINAL_COMMUNICATION, "%", "87 %"),
        ("communication of Sync 3", _SYNC3_COMMUNICATION, "%", "14 %"),
        ("speedup of Sync 3", total_speedups[-1], "x", "5.3 x"),
    ):
        figures.append(Figure(name, value, unit, "consistency check", published=published))
    return Section(
        "Do 87 %, 14 % and 5.3 x fit together?",
        tuple(figures),
        "Only if computing takes a quarter longer in Sync 3 than in the original.",
    )


def ask(trace: Trace) -> Section:
    """Measure what workers spend on each part of the exchange, and what they would without turns.

    Raises:
        UnusableInput: the run exchanges no weights with a centre.
    """
    workers = trace.workers["process"].implode()
    is_exchange = (pl.col("kind").cast(pl.String) == "elastic") & pl.col("process").is_in(workers)
    exchange_times = (
        trace.spans.filter(is_exchange)
        .group_by(pl.col("op").cast(pl.String))
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .collect()
    )
    partition = phases.run(trace)
    iteration_ns = partition.spent_ns.sum(axis=1)  # of each step of a worker
    total_ns = int(iteration_ns.sum())
    share_by_op = {op: ns / total_ns for op, ns in exchange_times.iter_rows()} if total_ns else {}
    if not share_by_op.keys() & _EXCHANGE_PARTS.keys():
        raise UnusableInput(
            "This run exchanges no weights with a centre: expected one of the EASGD family, such as of "
            "mpi_easgd.py."
        )
    figures = [
        Figure(f"{name}, of the steps", share_by_op.get(op, 0.0), "%", "measured")
        for op, name in _EXCHANGE_PARTS.items()
    ]
    exposed_share = 1 - int(partition.sum_ns_by_window(*OWN_CATEGORIES).sum()) / total_ns
    figures += [
        Figure("communication not hidden, of the steps", exposed_share, "%", "measured"),
        Figure("iteration", float(iteration_ns.mean()) / MILLISECOND, "ms", "measured"),
    ]
    if "turn_wait" in share_by_op:
        with suppress(InvalidArgument):  # of one worker alone, turns are no wait for others
            figures += _ask_without_turns(trace)
    return Section(
        "What did the run given communicate?",
        tuple(figures),
        "Waiting for the turn is no transfer: a faster network does not shorten it. What is under way "
        "while a worker computes costs it nothing.",
    )


def _ask_without_turns(trace: Trace) -> list[Figure]:
    """Compare a worker's iteration in turns with one whose master serves any waiting worker.

    Raises:
        InvalidArgument: the master takes no workers in turn.
    """
    (answer,) = whatif(trace, "async=on").answers
    return [
        Figure(name, step_ns / MILLISECOND, "ms", "measured")
        for name, step_ns in (
            ("iteration, all workers in turn", answer.before_ns),
            ("iteration, served at once", answer.after_ns),
        )
    ]
