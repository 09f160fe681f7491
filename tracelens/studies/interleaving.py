"""Li et al. 2019 (hal-02570148): Horovod at fine grain, ResNet-50 and CANDLE NT3 on 64 workers.

The authors ask what is reduced during backprop, what of a straggler's delay the pipeline of reductions
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
from tracelens.simulator.scenario import MILLISECOND, Fault, FaultPhase, Scenario
from tracelens.studies.figures import Figure, Section, Study
from tracelens.verdicts.whatif import whatif

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Floats
    from tracelens.model.trace import Trace

PAPER: Final = "Li et al. 2019, hal-02570148"
_BACKPROP_MS: Final = 670.0  # ms: backprop of ResNet-50 takes as long [chosen]
_FUSION_MS: Final = 20.0  # ms of backprop: gradients made in it are reduced in one call [chosen]
# rank: this one pauses; which one makes no difference [chosen; one decision in Case.fault,
# _ask_absorbed]
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
    pause_share: float | None  # share of backprop that is done then; None: before backprop

    @property
    def name(self) -> str:
        """The system, the length of the pause, and when it is."""
        where = "before backprop" if self.pause_share is None else f"after {self.pause_share:.0%}"
        return f"{self.system}, {self.pause_ms:.0f} ms {where}"

    @property
    def fault(self) -> Fault:
        """The fault that the simulator plants."""
        phase: FaultPhase = "forward" if self.pause_share is None else "backprop"
        return Fault(phase, (_PAUSED_RANK,), extra_ms=self.pause_ms, pause_share=self.pause_share)


_FAST, _SLOW = "ResNet-50 at 2 GB/s", "ResNet-50 at 0.2 GB/s"
_NT3, _NT3_SLOW = "NT3 at 2 GB/s", "NT3 at 0.6 GB/s"
CASES: Final = (
    Case(_FAST, pause_ms=200, pause_share=0.6),
    Case(_SLOW, pause_ms=200, pause_share=None),
    Case(_SLOW, pause_ms=200, pause_share=0.3),
    Case(_SLOW, pause_ms=350, pause_share=0.9),
    Case(_SLOW, pause_ms=400, pause_share=0.3),
    Case(_SLOW, pause_ms=500, pause_share=0.3),
    Case(_SLOW, pause_ms=800, pause_share=0.3),
    Case(_NT3, pause_ms=300, pause_share=0.3),
    Case(_NT3_SLOW, pause_ms=300, pause_share=0.3),
)


def study() -> Study:
    """Simulate."""
    systems = {
        _FAST: _make_resnet50(gbytes_per_s=2.0),
        _SLOW: _make_resnet50(gbytes_per_s=0.2),
        _NT3: _make_nt3(gbytes_per_s=2.0),
        _NT3_SLOW: _make_nt3(gbytes_per_s=0.6),
    }
    sections = (
        _ask_hidden(systems),
        _ask_absorbed(systems),
        _ask_gaps({name: systems[name] for name in (_FAST, _NT3)}),
    )
    return Study("interleaving", PAPER, sections, _SOURCES)


def _make_resnet50(gbytes_per_s: float) -> Scenario:
    """Return ResNet-50; a bucket holds gradients made in one window of `_FUSION_MS`, as of Horovod."""
    model = scenario_file.make_scenario(scenario_file.load_preset("resnet50"))
    work_sums = np.cumsum(model.work[::-1])
    exact_windows = work_sums / work_sums[-1] * (_BACKPROP_MS / _FUSION_MS)  # [variable]
    windows = np.ceil(exact_windows).astype(np.int64)  # the number of each variable's window
    first_variables = np.flatnonzero(np.diff(windows, prepend=-1))
    bucket_bytes = np.add.reduceat(model.variables[::-1], first_variables).tolist()
    bucket_ends = np.append(work_sums[first_variables[1:] - 1], work_sums[-1])
    ready_shares = (bucket_ends / work_sums[-1]).tolist()
    compute = {"data_ms": 0.0, "forward_ms": 330.0, "backprop_ms": _BACKPROP_MS, "update_ms": 4.0}
    return scenario_file.make_scenario(
        {
            "run": {"workers": 64, "workers_per_host": 1, "steps": 6},
            "compute": compute | {"noise": 0.005},
            "network": {"gbytes_per_s": gbytes_per_s, "latency_us": 5.0},
            "allreduce": {"buckets": bucket_bytes, "ready": ready_shares},
        }
    )


def _make_nt3(gbytes_per_s: float) -> Scenario:
    tables = scenario_file.load_preset("nt3")
    tables["run"]["steps"] = 6
    tables["compute"]["noise"] = 0.005
    tables["network"]["gbytes_per_s"] = gbytes_per_s
    return scenario_file.make_scenario(tables)


def _sum_compute_ms(system: Scenario) -> float:
    return system.data_ms + system.forward_ms + system.backprop_ms


def _simulate_reductions(system: Scenario) -> Floats:
    """Return when each bucket is reduced in a step without noise, ms from its begin, [bucket]."""
    # Without noise all ranks do the same, so that one is enough.
    quiet_system = replace(system, ranks=1, steps=1, noise=0.0, spread=0.0, exit_skew_us=0.0)
    spans = prepare(synthetic.generate(quiet_system)).spans
    first_begin = spans.select(pl.col("start_ns").min())
    reduction_ends = spans.filter(pl.col("kind") == "reduction").select("end_ns").sort("end_ns")
    since_begin_ns = reduction_ends.collect()["end_ns"].to_numpy() - first_begin.collect().item()
    return np.asarray(since_begin_ns / MILLISECOND)


def _ask_hidden(systems: dict[str, Scenario]) -> Section:
    """Simulate the length of steps, and the time that reductions take after backprop, by system."""
    figures: list[Figure] = []
    for name, system in systems.items():
        compute_ms = _sum_compute_ms(system)
        tail_ms = max(float(_simulate_reductions(system)[-1]) - compute_ms, 0.0)
        figures += [
            Figure(f"step, {name}", compute_ms + tail_ms + system.update_ms, "ms", "simulated"),
            Figure(f"reductions after backprop, {name}", tail_ms, "ms", "simulated"),
        ]
    return Section(
        "What do reductions add to a step?",
        tuple(figures),
        "Nearly nothing while they keep up with backprop; then all that they take longer.",
    )


def _ask_absorbed(systems: dict[str, Scenario]) -> Section:
    """Compute the share of a pause that costs nothing: by a run without it, and by its trace."""
    figures: list[Figure] = []
    for case in CASES:
        quiet_system = systems[case.system]
        paused_system = replace(quiet_system, faults=(case.fault,))
        total_lost_ns = synthetic.duration_ns(paused_system) - synthetic.duration_ns(quiet_system)
        pause_ns = case.pause_ms * MILLISECOND  # of each step
        (answer,) = whatif(
            prepare(synthetic.generate(paused_system)), f"rank:{_PAUSED_RANK}=median"
        ).answers
        share_by_trace = 1 - (answer.before_ns - answer.after_ns) / pause_ns
        absorbed_share = 1 - total_lost_ns / quiet_system.steps / pause_ns
        figures += [
            Figure(case.name, absorbed_share, "%", "simulated"),
            Figure(f"{case.name}, by trace", share_by_trace, "%", "simulated"),
        ]
    return Section(
        "What of a straggler's pause in backprop is absorbed, and does its trace say so?",
        tuple(figures),
        "A pause inside backprop, up to the tail of reductions that are behind anyway; nothing of one "
        "before backprop. What is left of these is other ranks' noise. It is partial, as published: "
        "where nothing is exposed, nothing is absorbed.",
    )


def _ask_gaps(systems: dict[str, Scenario]) -> Section:
    """Measure the gaps between updates, each made as soon as its bucket is reduced, by system."""
    figures: list[Figure] = []
    for name, system in systems.items():
        reduced_ms = _simulate_reductions(system)  # [bucket], as the times of updates
        bucket_bytes = np.array(system.bytes_of_buckets, np.float64)
        updates_ms = system.update_ms * bucket_bytes / bucket_bytes.sum()
        begin_ms, end_ms = _schedule_updates(reduced_ms, updates_ms)
        compute_ms = _sum_compute_ms(system)
        step_ms = max(compute_ms, float(end_ms[-1]))
        # The last gap reaches from a step's last update to the first one of the next step.
        gaps_ms = np.append(begin_ms[1:] - end_ms[:-1], step_ms - end_ms[-1] + begin_ms[0])
        longest_ms, gap_share = float(gaps_ms[:-1].max()), float(gaps_ms.sum()) / step_ms
        figures += [
            Figure(f"first update of a step, {name}", float(begin_ms[0]), "ms", "simulated"),
            Figure(f"longest gap within a step, {name}", longest_ms, "ms", "simulated"),
            Figure(f"all gaps, of the step, {name}", gap_share, "%", "simulated"),
        ]
    return Section(
        "How long are the gaps between weight updates?",
        tuple(figures),
        "Nearly all of a step in both, but in pieces of very different length: what work fits in "
        "depends on how long it takes to begin.",
    )


def _schedule_updates(reduced_ms: Floats, update_ms: Floats) -> tuple[Floats, Floats]:
    """Return begin and end of updates, ms, [bucket]: in turn, each once its bucket is reduced."""
    begin_ms, end_ms = np.empty_like(reduced_ms), np.empty_like(reduced_ms)
    free_ms = 0.0
    for bucket, ready_ms in enumerate(reduced_ms.tolist()):
        begin_ms[bucket] = max(ready_ms, free_ms)
        free_ms = end_ms[bucket] = begin_ms[bucket] + update_ms[bucket]
    return begin_ms, end_ms


def ask(trace: Trace) -> Section:
    """Measure the hidden communication, the absorbed delay and the gaps between updates of a run.

    Raises:
        UnusableInput: it holds no reductions.
    """
    phases = accounting.run(trace)
    results = interleaving.run(Facts(trace, phases))
    hidden_shares = results.overlap["overlap"].drop_nulls()  # of communication, by rank
    if hidden_shares.is_empty():
        raise UnusableInput(
            "This run has no reductions: expected one whose ranks record them "
            "('tracelens info' says what there is)."
        )
    mean_share = float(hidden_shares.to_numpy().mean())
    figures = [_make_measured_figure("communication hidden beside compute", mean_share, "%")]
    gaps_ns = results.gaps.filter("within")["gap_ns"].to_numpy()
    if len(gaps_ns):
        longest_ms = float(gaps_ns.max()) / MILLISECOND
        figures.append(
            _make_measured_figure("longest gap between updates of a step", longest_ms, "ms")
        )
    return Section(
        "What of the run given?",
        (*figures, *_ask_straggler(trace, phases)),
        "A delay is absorbed as far as ending it saves nothing ('tracelens whatif').",
    )


def _ask_straggler(trace: Trace, phases: Phases) -> Iterator[Figure]:
    """Yield the extra work of the slowest rank in a step, and the share of it that costs nothing."""
    total_work_ns = phases.sum_by_worker(phases.sum_ns_by_window(*OWN_CATEGORIES))
    work_ns = total_work_ns / len(phases.step_numbers)  # [worker]
    slowest = int(work_ns.argmax())
    if len(work_ns) < 2:
        return
    delay_ns = float(work_ns[slowest] - np.median(np.delete(work_ns, slowest)))
    if delay_ns < work_ns[slowest] * MIN_SHARE_DELAYED_TO_REPORT:
        return
    rank_by_process = dict(trace.workers.select("process", "rank").iter_rows())
    rank = rank_by_process[phases.pieces.processes[slowest]]
    (answer,) = whatif(trace, f"rank:{rank}=median", phases=phases).answers
    absorbed_share = 1 - (answer.before_ns - answer.after_ns) / delay_ns
    delay_ms = delay_ns / MILLISECOND
    yield _make_measured_figure(f"rank {rank} works longer than others, in a step", delay_ms, "ms")
    yield _make_measured_figure("absorbed of that", min(max(absorbed_share, 0.0), 1.0), "%")


def _make_measured_figure(name: str, value: float, unit: str) -> Figure:
    return Figure(name, value, unit, tag="measured")
