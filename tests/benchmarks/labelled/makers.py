"""Makes labelled runs: plants something in a healthy run, plays both, and tells what was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled import elastic, servers, told, told_by_servers, training
from benchmarks.labelled.clocks import HostClock, skewed
from benchmarks.labelled.label import HEALTHY, Case, Label, Seen
from benchmarks.labelled.work import Work, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.setting import Setting

    Plant = Callable[[Setting, Work], Label]
    Clocks = Callable[[Setting], list[HostClock]]
    Fix = Callable[[Setting, Work], list[Work]]

COSTS: Final = 0.05  # of the job
MOST_TURNS: Final = 40_960  # steps of workers with servers, each of which is many requests
STRENGTHS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)


def synchronous(
    plant: Plant,
    clocks: Clocks = skewed,
    base: Callable[[Setting], Work] = draw,
    fix: Fix | None = None,
) -> Callable[[Setting], Case]:
    """Make an allreduce training with and without what is planted.

    The true saving is the difference to the run before planting, or to the best of what `fix` makes of
    the planted one.
    """

    def make(setting: Setting) -> Case:
        healthy = base(setting)
        planted = healthy.copied()
        label = plant(setting, planted)
        played = training.play(planted)
        if label.priced and label.verdict != HEALTHY:
            ways = fix(setting, planted) if fix else [healthy]
            least = min(training.play(way).job_ns for way in ways)
            label = replace(label, saving=1 - least / played.job_ns)
        hosts = clocks(setting)
        shown_ns = np.stack(
            [
                hosts[rank // setting.per_host].shows(played.enter[:, rank, -1])
                for rank in range(setting.ranks)
            ],
            axis=1,
        )
        recording = told.tell(setting, planted, played, hosts)
        return Case(recording, label, Seen(planted.phases, shown_ns))

    return make


def with_servers(
    plant: Callable[[Setting, servers.Servers, float], Label],
    fix: Callable[[servers.Servers], None] | None = None,
) -> Callable[[Setting], Case]:
    """Make a training with parameter servers, each on a host of its own.

    What is planted is twice as strong again until it costs `COSTS`: among many workers, or under harsh
    noise, requests come so far apart that a weak one costs nothing. The true saving is the difference
    to the run before planting, or to the planted one after `fix`.
    """

    def make(setting: Setting) -> Case:
        setting = replace(setting, steps=min(setting.steps, MOST_TURNS // setting.ranks))
        healthy = servers.draw(setting)
        for strength in STRENGTHS:
            planted = healthy.copied()
            label = plant(setting, planted, strength)
            played = servers.play(planted)
            if label.verdict == HEALTHY:
                break
            fixed = planted.copied() if fix else healthy
            if fix:
                fix(fixed)
            label = replace(label, saving=1 - servers.play(fixed).job_ns / played.job_ns)
            if (label.saving or 0.0) >= COSTS:
                break
        clocks = [*skewed(setting), *(HostClock() for _ in range(servers.SHARDS))]
        return Case(told_by_servers.tell(setting, planted, played, clocks), label)

    return make


def averaging(plant: Callable[[Setting, elastic.Elastic], Label]) -> Callable[[Setting], Case]:
    """Make an elastic averaging run; its master has a host of its own."""

    def make(setting: Setting) -> Case:
        healthy = elastic.draw(setting)
        planted = healthy.copied()
        label = plant(setting, planted)
        played = elastic.play(planted)
        if label.verdict != HEALTHY:
            label = replace(label, saving=1 - elastic.play(healthy).job_ns / played.job_ns)
        clocks = [*skewed(setting), HostClock()]
        return Case(elastic.tell(setting, played, clocks), label)

    return make
