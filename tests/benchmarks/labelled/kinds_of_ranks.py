"""Kinds of run in which nobody, or some rank, or all of them, are slow by their own work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.label import Label
from benchmarks.labelled.work import COMPUTE, STEP_MS

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Floats, Setting
    from benchmarks.labelled.work import Work

_COMPUTE: Final = ("backprop", "forward", "update")
_ON_AND_OFF: Final = ("intermittent", "periodic")
_WARM: Final = 8  # steps: nothing begins earlier, unless it lasts for the whole run


def pick(setting: Setting, count: int = 1) -> list[int]:
    """Choose ranks."""
    chosen = setting.stream("who").choice(setting.ranks, count, replace=False)
    return sorted(int(rank) for rank in chosen)


def interval(setting: Setting, low: float, high: float) -> tuple[int, int]:
    """Choose steps, inclusive: between these shares of the run, after the first ones."""
    draw = setting.stream("when")
    length = int(setting.steps * draw.uniform(low, high))
    first = int(draw.integers(_WARM, setting.steps - length + 1))
    return first, first + length - 1


def onset(setting: Setting) -> tuple[int, int]:
    """Choose from which step on something lasts to the end."""
    first = int(setting.steps * setting.stream("when").uniform(0.3, 0.6))
    return first, setting.steps - 1


def rows(steps: tuple[int, int]) -> slice:
    """Return steps as a slice."""
    return slice(steps[0], steps[1] + 1)


def nothing(_setting: Setting, _work: Work) -> Label:
    """Plant nothing."""
    return Label()


def late_start(setting: Setting, work: Work) -> Label:
    """Let ranks start seconds apart."""
    work.starts += setting.stream("starts").exponential(3_000.0, setting.ranks)
    return Label()


def compiling(setting: Setting, work: Work) -> Label:
    """Make the first steps many times as long, more so on some ranks."""
    draw = setting.stream("compile")
    count = int(draw.integers(3, _WARM))
    factor = draw.uniform(5.0, 30.0) * draw.uniform(0.8, 1.2, (count, setting.ranks))
    for name in ("forward", "backprop"):
        work.phases[name][:count] *= factor
    return Label()


def persistent(setting: Setting, work: Work, by: float) -> Label:
    """Make one rank slower for the whole run."""
    ranks = pick(setting)
    work.slow(1 + by, ranks)
    steps = (0, setting.steps - 1)
    return Label(
        "straggler", ranks=tuple(ranks), phases=_COMPUTE, patterns=("persistent",), steps=steps
    )


def transient(setting: Setting, work: Work, by: float = 0.3) -> Label:
    """Make one rank slower for a while."""
    ranks, steps = pick(setting), interval(setting, 0.25, 0.45)
    work.slow(1 + by, ranks, rows(steps))
    return Label(
        "straggler", ranks=tuple(ranks), phases=_COMPUTE, patterns=("transient",), steps=steps
    )


def intermittent(setting: Setting, work: Work, by: float = 0.5) -> Label:
    """Make one rank slower on and off: for some steps, and not for as many after them."""
    (rank,), draw = pick(setting), setting.stream("on and off")
    first_step = step = int(draw.integers(_WARM, _WARM + 8))
    while step < setting.steps - _WARM:
        last_step = step + int(draw.integers(5, 10))
        work.slow(1 + by, [rank], slice(step, last_step))
        step = last_step + int(draw.integers(5, 10))
    return Label(
        "straggler",
        ranks=(rank,),
        phases=_COMPUTE,
        patterns=_ON_AND_OFF,
        steps=(first_step, last_step - 1),
    )


def uncovered(setting: Setting, work: Work, by_ms: float = 15.0) -> Label:
    """Let one rank do something in a part of the run that no span covers, before it loads data."""
    ranks, steps = pick(setting), interval(setting, 0.4, 0.8)
    work.uncovered = np.zeros_like(work.gc)
    noise = setting.stream("uncovered").gamma(100.0, by_ms / 100.0, steps[1] - steps[0] + 1)
    work.uncovered[rows(steps), ranks[0]] = noise
    return Label(
        "straggler",
        ranks=tuple(ranks),
        phases=("uninstrumented",),
        patterns=("transient", "persistent"),
        steps=steps,
    )


def speed_change(setting: Setting, work: Work, by: float = 0.2) -> Label:
    """Slow one of unequal ranks from a step on."""
    ranks, steps = pick(setting), onset(setting)
    work.slow(1 + by, ranks, rows(steps))
    lasting = ("persistent", "transient")
    return Label("straggler", ranks=tuple(ranks), phases=_COMPUTE, patterns=lasting, steps=steps)


def thermal(setting: Setting, work: Work, by: float = 0.4) -> Label:
    """Let one rank become slower and slower to the end."""
    ranks, steps = pick(setting), onset(setting)
    ramp = 1 + by * np.linspace(0.0, 1.0, steps[1] - steps[0] + 1)
    for name in COMPUTE:
        work.phases[name][rows(steps), ranks[0]] *= ramp
    return Label(
        "straggler", ranks=tuple(ranks), phases=_COMPUTE, patterns=("drifting",), steps=steps
    )


def two_ranks(setting: Setting, work: Work) -> Label:
    """Make two ranks slower for the whole run, one of them more."""
    ranks = pick(setting, 2)
    while ranks[0] // setting.per_host == ranks[1] // setting.per_host:
        ranks[1] = (ranks[1] + setting.per_host) % setting.ranks  # else it were a slow host
    work.slow(1.2, ranks[:1])
    work.slow(1.15, ranks[1:])
    named = tuple(sorted(ranks))
    return Label("straggler", ranks=named, phases=_COMPUTE, patterns=("persistent",))


def slow_host(setting: Setting, work: Work, by: float = 0.2) -> Label:
    """Make all ranks of a host slower for a while."""
    host = int(setting.stream("who").integers(setting.hosts))
    ranks = [rank for rank in range(setting.ranks) if rank // setting.per_host == host]
    steps = interval(setting, 0.4, 0.8)
    work.slow(1 + by, ranks, rows(steps))
    named = (f"node{host:03d}",)
    return Label("slow_host", ranks=tuple(ranks), hosts=named, phases=_COMPUTE, steps=steps)


def rotating(setting: Setting, work: Work, by: float = 0.4) -> Label:
    """Slow another rank every few steps."""
    length = max(6, setting.steps // 16)
    begins = range(_WARM, setting.steps - length, length)
    draw = setting.stream("who")
    ranks = [int(rank) for rank in draw.integers(setting.ranks, size=len(begins))]
    for begin, rank in zip(begins, ranks, strict=True):
        work.slow(1 + by, [rank], slice(begin, begin + length))
    visited = tuple(sorted(set(ranks)))
    return Label("straggler", ranks=visited, anyone=True, phases=_COMPUTE, patterns=("migrating",))


def slow_all(setting: Setting, work: Work, by: float = 0.25) -> Label:
    """Slow all ranks from a step on."""
    steps = onset(setting)
    work.slow(1 + by, list(range(setting.ranks)), rows(steps))
    return Label("slow_all", phases=_COMPUTE, steps=steps)


def sequence_lengths(setting: Setting, work: Work) -> Label:
    """Give every rank another amount of work in every step."""
    for name in ("forward", "backprop"):
        work.phases[name] *= _amount(setting)
    return Label("load_imbalance", opportunity=True)


def evened(setting: Setting, work: Work) -> list[Work]:
    """Give all ranks the same amount of work in each step: as much in all."""
    even, amount = work.copied(), _amount(setting)
    for name in ("forward", "backprop"):
        even.phases[name] *= amount.mean(axis=1, keepdims=True) / amount
    return [even]


def _amount(setting: Setting) -> Floats:
    return setting.stream("lengths").lognormal(0.0, 0.25, (setting.steps, setting.ranks))


def loader_stall(setting: Setting, work: Work) -> Label:
    """Let one rank's loader stall every few steps."""
    ranks, draw = pick(setting), setting.stream("when")
    every = int(draw.integers(8, 14))
    hit = np.arange(int(draw.integers(_WARM, _WARM + every)), setting.steps, every)
    work.phases["data"][hit, ranks[0]] += 0.6 * STEP_MS
    return Label("straggler", ranks=tuple(ranks), phases=("data",), patterns=("sparse",))


def slow_loader(setting: Setting, work: Work) -> Label:
    """Let one rank's loader always be slow."""
    ranks = pick(setting)
    work.phases["data"][:, ranks] *= 6
    whole = (0, setting.steps - 1)
    return Label(
        "straggler", ranks=tuple(ranks), phases=("data",), patterns=("persistent",), steps=whole
    )


def loader_stall_of_all(setting: Setting, work: Work) -> Label:
    """Let all loaders be slow for a while."""
    steps = interval(setting, 0.2, 0.35)
    work.phases["data"][rows(steps)] += 0.4 * STEP_MS
    return Label("data_stall", phases=("data",), steps=steps)


def gc_of_one(setting: Setting, work: Work) -> Label:
    """Let one rank pause for garbage collection now and then."""
    ranks, draw = pick(setting), setting.stream("when")
    hit = np.arange(int(draw.integers(_WARM, 2 * _WARM)), setting.steps, int(draw.integers(8, 14)))
    work.gc[hit, ranks[0]] += 0.5 * STEP_MS
    return Label("gc_stall", ranks=tuple(ranks), phases=("gc",), patterns=("sparse",))


def gc_of_all(setting: Setting, work: Work) -> Label:
    """Let every rank pause every 25 steps, each at its own time."""
    phase = setting.stream("when").integers(25, size=setting.ranks)
    paused = (np.arange(setting.steps)[:, None] - phase) % 25 == 0
    work.gc += 0.4 * STEP_MS * paused
    return Label("gc_stall", ranks=tuple(range(setting.ranks)), anyone=True, phases=("gc",))


def checkpoint(setting: Setting, work: Work) -> Label:
    """Let rank 0 write checkpoints."""
    hit = np.arange(10, setting.steps, max(10, setting.steps // 6))
    work.checkpoint[hit, 0] += 2.0 * STEP_MS
    return Label("checkpoint_stall", opportunity=True, ranks=(0,), phases=("checkpoint",))
