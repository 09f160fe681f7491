"""Kinds of run whose ranks are stages of pipelines: each stage works for itself, and hands on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.labelled import pipeline
from benchmarks.labelled.clocks import skewed
from benchmarks.labelled.kinds_of_ranks import persistent
from benchmarks.labelled.label import HEALTHY, Case, Label, Seen
from benchmarks.labelled.work import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.setting import Setting
    from benchmarks.labelled.work import Work

UNEQUAL: Final = 1.4  # times the work of the other stages that the last one has


def _equal(setting: Setting) -> Work:
    return draw(setting, buckets=1)


def uneven(setting: Setting) -> Work:
    """Draw a run whose last stage has more to do than the others."""
    work = _equal(setting)
    unequal_stages(setting, work)
    return work


def staged(
    plant: Callable[[Setting, Work], Label],
    base: Callable[[Setting], Work] = _equal,
    *,
    by_stage: bool = True,
) -> Callable[[Setting], Case]:
    """Make a pipeline-parallel training with and without what is planted.

    The true saving is the difference to the run before planting; of unequal stages, to the same work
    spread evenly.
    """

    def make(setting: Setting) -> Case:
        healthy = base(setting)
        planted = healthy.copied()
        label = plant(setting, planted)
        played = pipeline.play(setting, planted)
        if label.verdict != HEALTHY:
            fixed = _even(setting, planted) if label.opportunity else healthy
            least = pipeline.play(setting, fixed).job_ns
            label = replace(label, saving=1 - least / played.job_ns)
        hosts = skewed(setting)
        recording = pipeline.tell(setting, played, hosts, by_stage=by_stage)
        return Case(recording, label, Seen(planted.phases, played.norm[..., 0]))

    return make


def straggler(setting: Setting, work: Work) -> Label:
    """Make one rank of one pipeline slower for the whole run."""
    return replace(persistent(setting, work, by=0.3), also=("stage_imbalance",))


def unequal_stages(setting: Setting, work: Work) -> Label:
    """Give the last stage more to do than the others."""
    last = pipeline.stage_of(setting) == pipeline.STAGES[setting.ranks] - 1
    for name in pipeline.PHASES:
        work.phases[name][:, last] *= UNEQUAL
    return Label("stage_imbalance", opportunity=True)


def _even(setting: Setting, work: Work) -> Work:
    """Return the same work, of which every stage has the mean."""
    even, is_last = work.copied(), pipeline.stage_of(setting) == pipeline.STAGES[setting.ranks] - 1
    stages = pipeline.STAGES[setting.ranks]
    mean = (stages - 1 + UNEQUAL) / stages
    for name in pipeline.PHASES:
        even.phases[name][:, is_last] *= mean / UNEQUAL
        even.phases[name][:, ~is_last] *= mean
    return even
