"""Li et al. 2019 (hal-02570148): Horovod at fine grain, ResNet-50 and CANDLE NT3 on 64 workers.

The authors ask what is reduced beside backprop, what of a straggler's delay the pipeline of reductions
absorbs ("only partially"), and how long the gaps between weight updates are. One thread reduces buckets
one after the other. So a pause costs nothing while reductions are behind anyway, and what is longer than
their tail after backprop is lost: at most min(1, tail / pause) is absorbed. Where reductions keep up, or
the pause comes before the first of them, all of it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting import phases as accounting
from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.analyses import interleaving
from tracelens.errors import UnusableInput
from tracelens.facts import Facts
from tracelens.load import prepare
from tracelens.simulator import scenario_file, synthetic
from tracelens.simulator.scenario import MILLISECOND, Fault, Scenario
from tracelens.studies.figures import Figure, Section, Study
from tracelens.verdicts.whatif import whatif

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.trace import Trace

__all__ = ["CASES", "ask", "study"]

PAPER: Final = "Li et al. 2019, hal-02570148"
_BACKPROP_MS: Final = 670.0  # ms: backprop of ResNet-50 takes as long [chosen]
_FUSION_MS: Final = 20.0  # ms of backprop: gradients made in it are reduced in one call [chosen]
# rank: this one pauses; which one makes no difference [chosen; one decision in Case.fault,
# _absorbed]
_PAUSED_RANK: Final = 5
# share of the most work: a rank that is delayed less is not reported [policy]
MIN_SHARE_DELAYED_TO_REPORT: Final = 0.01
_SOURCES: Final = (
    (
        "64 workers, a ring, 2 and 0.2 or 0.6 GB/s; forward and backprop of ResNet-50 330 and 670 ms, "
        "of NT3 800 and 1600 ms: assumed, as no value of the paper's figures could be read."
    ),
    "Horovod joins what is ready when its thread comes by; here what 20 ms of backprop make.",
    "The paper's own text was not read beyond its abstract.",
)


@dataclass(frozen=True)
class Case:
    """A rank that pauses in every step of a system."""

    system: str
    pause_ms: float
    at: float | None  # share of backprop that is done then; null: before backprop

    @property
    def name(self) -> str:
        """Name the system, the length of the pause and its place."""
        where = "before backprop" if self.at is None else f"after {self.at:.0%}"
        return f"{self.system}, {self.pause_ms:.0f} ms {where}"

    @property
    def fault(self) -> Fault:
        """What the simulator plants."""
        if self.at is None:
            return Fault("forward", (_PAUSED_RANK,), extra_ms=self.pause_ms)
        return Fault("backprop", (_PAUSED_RANK,), extra_ms=self.pause_ms, at=self.at)


_FAST, _SLOW = "ResNet-50 at 2 GB/s", "ResNet-50 at 0.2 GB/s"
_NT3, _NT3_SLOW = "NT3 at 2 GB/s", "NT3 at 0.6 GB/s"
CASES: Final = (
    Case(_FAST, 200, 0.6),
    Case(_SLOW, 200, None),
    Case(_SLOW, 200, 0.3),
    Case(_SLOW, 350, 0.9),
    Case(_SLOW, 400, 0.3),
    Case(_SLOW, 500, 0.3),
    Case(_SLOW, 800, 0.3),
    Case(_NT3, 300, 0.3),
    Case(_NT3_SLOW, 300, 0.3),
)


def study() -> Study:
    """Simulate."""
    systems = {
        _FAST: _resnet50(2.0),
        _SLOW: _resnet50(0.2),
        _NT3: _nt3(2.0),
        _NT3_SLOW: _nt3(0.6),
    }
    sections = (
        _hidden(systems),
        _absorbed(systems),
        _gaps({name: systems[name] for name in (_FAST, _NT3)}),
    )
    return Study("interleaving", PAPER, sections, _SOURCES)


def _resnet50(gbytes_per_s: float) -> Scenario:
    """Return ResNet-50 with its tensors in backprop's order, neighbours joined."""
    model = scenario_file.scenario(scenario_file.preset("resnet50"))
    made = np.cumsum(model.work[::-1])
    window = np.ceil(made / made[-1] * (_BACKPROP_MS / _FUSION_MS)).astype(np.int64)
    first = np.flatnonzero(np.diff(window, prepend=-1))
    sizes = np.add.reduceat(model.variables[::-1], first).tolist()
    ready = (np.append(made[first[1:] - 1], made[-1]) / made[-1]).tolist()
    compute = {"data_ms": 0.0, "forward_ms": 330.0, "backprop_ms": _BACKPROP_MS, "update_ms": 4.0}
    return scenario_file.scenario(
        {
            "run": {"workers": 64, "workers_per_host": 1, "steps": 6},
            "compute": compute | {"noise": 0.005},
            "network": {"gbytes_per_s": gbytes_per_s, "latency_us": 5.0},
            "allreduce": {"buckets": sizes, "ready": ready},
        }
    )


def _nt3(gbytes_per_s: float) -> Scenario:
    found = scenario_file.preset("nt3")
    found["run"]["steps"] = 6
    found["compute"]["noise"] = 0.005
    found["network"]["gbytes_per_s"] = gbytes_per_s
    return scenario_file.scenario(found)


def _computed_ms(system: Scenario) -> float:
    return system.data_ms + system.forward_ms + system.backprop_ms


def _reduced(system: Scenario) -> Floats:
    """Return when each bucket is reduced in a step without noise, in ms from its begin."""
    quiet = replace(system, ranks=1, steps=1, noise=0.0, spread=0.0, exit_skew_us=0.0)
    spans = prepare(synthetic.generate(quiet)).spans
    begin = spans.select(pl.col("start_ns").min())
    ends = spans.filter(pl.col("kind") == "reduction").select("end_ns").sort("end_ns")
    since = ends.collect()["end_ns"].to_numpy() - begin.collect().item()
    return np.asarray(since / MILLISECOND)


def _hidden(systems: dict[str, Scenario]) -> Section:
    figures: list[Figure] = []
    for name, system in systems.items():
        computed = _computed_ms(system)
        tail = max(float(_reduced(system)[-1]) - computed, 0.0)
        figures += [
            Figure(f"step, {name}", computed + tail + system.update_ms, "ms", "simulated"),
            Figure(f"reductions after backprop, {name}", tail, "ms", "simulated"),
        ]
    return Section(
        "What do reductions add to a step?",
        tuple(figures),
        "Nearly nothing while they keep up with backprop; then all that they take longer.",
    )


def _absorbed(systems: dict[str, Scenario]) -> Section:
    """Compare the answer of each paused run's trace with the run that has no pause."""
    figures: list[Figure] = []
    for case in CASES:
        without = systems[case.system]
        paused = replace(without, faults=(case.fault,))
        lost = synthetic.duration_ns(paused) - synthetic.duration_ns(without)
        pause_ns = case.pause_ms * MILLISECOND
        (answer,) = whatif(
            prepare(synthetic.generate(paused)), f"rank:{_PAUSED_RANK}=median"
        ).answers
        by_trace = 1 - (answer.before_ns - answer.after_ns) / pause_ns
        truth = 1 - lost / without.steps / pause_ns
        figures += [
            Figure(case.name, truth, "%", "simulated"),
            Figure(f"{case.name}, by trace", by_trace, "%", "simulated"),
        ]
    return Section(
        "What of a straggler's pause in backprop is absorbed, and does its trace say so?",
        tuple(figures),
        "A pause inside backprop, up to the tail of reductions that are behind anyway; nothing of one "
        "before backprop. What is left of these is other ranks' noise. It is partial, as published: "
        "where nothing is exposed, nothing is absorbed.",
    )


def _gaps(systems: dict[str, Scenario]) -> Section:
    """Return what lies between updates, each made as soon as its bucket is reduced."""
    figures: list[Figure] = []
    for name, system in systems.items():
        reduced = _reduced(system)
        sizes = np.array(system.bytes_of_buckets, np.float64)
        begin, end = _updates(reduced, system.update_ms * sizes / sizes.sum())
        computed = _computed_ms(system)
        step = max(computed, float(end[-1]))
        gaps = np.append(begin[1:] - end[:-1], step - end[-1] + begin[0])
        figures += [
            Figure(f"first update of a step, {name}", float(begin[0]), "ms", "simulated"),
            Figure(f"longest gap within a step, {name}", float(gaps[:-1].max()), "ms", "simulated"),
            Figure(f"all gaps, of the step, {name}", float(gaps.sum()) / step, "%", "simulated"),
        ]
    return Section(
        "How long are the gaps between weight updates?",
        tuple(figures),
        "Nearly all of a step in both, but in pieces of very different length: what work fits in "
        "depends on how long it takes to begin.",
    )


def _updates(reduced: Floats, lasting: Floats) -> tuple[Floats, Floats]:
    """Return begin and end of updates, one after the other, each once its bucket is reduced."""
    begin, end = np.empty_like(reduced), np.empty_like(reduced)
    free = 0.0
    for bucket, ready in enumerate(reduced.tolist()):
        begin[bucket] = max(ready, free)
        free = end[bucket] = begin[bucket] + lasting[bucket]
    return begin, end


def ask(trace: Trace) -> Section:
    """Return what a recorded run hides and absorbs, and how long the gaps between its updates are.

    Raises:
        UnusableInput: it holds no reductions.
    """
    phases = accounting.run(trace)
    found = interleaving.run(Facts(trace, phases))
    hidden = found.overlap["overlap"].drop_nulls()
    if hidden.is_empty():
        raise UnusableInput(
            "This run has no reductions: expected one whose ranks record them "
            "('tracelens info' says what there is)."
        )
    figures = [_of_run("communication hidden beside compute", float(hidden.to_numpy().mean()), "%")]
    within = found.gaps.filter("within")["gap_ns"].to_numpy()
    if len(within):
        longest = float(within.max()) / MILLISECOND
        figures.append(_of_run("longest gap between updates of a step", longest, "ms"))
    return Section(
        "What of the run given?",
        (*figures, *_straggler(trace, phases)),
        "A delay is absorbed as far as ending it saves nothing ('tracelens whatif').",
    )


def _straggler(trace: Trace, phases: Phases) -> Iterator[Figure]:
    """Yield by how much the rank that works longest does so in a step, and what of it costs nothing."""
    own = phases.by_worker(phases.of(*OWN_CATEGORIES)) / len(phases.steps)
    last = int(own.argmax())
    if len(own) < 2 or own.max() * MIN_SHARE_DELAYED_TO_REPORT > own.max() - np.median(
        np.delete(own, last)
    ):
        return
    delay_ns = float(own.max() - np.median(np.delete(own, last)))
    ranks = dict(trace.workers.select("process", "rank").iter_rows())
    rank = ranks[phases.pieces.processes[last]]
    (answer,) = whatif(trace, f"rank:{rank}=median", phases=phases).answers
    absorbed = 1 - (answer.before_ns - answer.after_ns) / delay_ns
    yield _of_run(f"rank {rank} works longer than others, in a step", delay_ns / MILLISECOND, "ms")
    yield _of_run("absorbed of that", min(max(absorbed, 0.0), 1.0), "%")


def _of_run(name: str, value: float, unit: str) -> Figure:
    return Figure(name, value, unit, "measured")
