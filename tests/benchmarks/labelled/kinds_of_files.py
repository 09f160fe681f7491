"""Kinds of run whose files, or whose ranks, are not all there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from benchmarks.labelled.kinds_of_ranks import nothing, pick
from benchmarks.labelled.label import Case, Label
from benchmarks.labelled.makers import synchronous
from benchmarks.labelled.recording import cut_events, world

if TYPE_CHECKING:
    from benchmarks.labelled.setting import Setting

RESTART_NS: Final = 300_000_000_000


def epochs(setting: Setting) -> Case:
    """Number steps anew in each epoch."""
    case = synchronous(nothing)(setting)
    length = setting.steps // 2
    numbered = case.recording.events.with_columns(
        step=pl.when(pl.col("step") >= 0).then(pl.col("step") % length).otherwise("step")
    )
    return replace(case, recording=replace(case.recording, events=numbered))


def killed(setting: Setting) -> Case:
    """Kill one rank within a step; the others are stuck and killed soon after."""
    case = synchronous(nothing)(setting)
    rank = pick(setting)[0]
    step = int(setting.steps * setting.stream("when").uniform(0.3, 0.9))
    events = case.recording.events
    own = events.filter((pl.col("process") == rank) & (pl.col("step") == step))
    end_ns = own.filter(pl.col("kind") == "backprop")["start_ns"][0] + 1_000_000
    collective = pl.col("kind").is_in(["reduction"]) & (pl.col("step") == step)
    stuck = events.filter(collective)["end_ns"].min()
    assert isinstance(stuck, int)
    ends = np.full(setting.ranks, stuck - 1)
    ends[rank] = end_ns
    events = cut_events(events, ends)
    members = tuple(replace(member, complete=False) for member in case.recording.members)
    recording = replace(case.recording, events=events, members=members)
    label = Label("truncated_trace", ranks=(rank,), steps=(step, step))
    return Case(recording, label, through_files=setting.ranks <= 64)


def missing(setting: Setting) -> Case:
    """Lose one rank's file."""
    case = synchronous(nothing)(setting)
    rank = pick(setting)[0]
    return Case(case.recording.without(rank), Label("missing_rank", ranks=(rank,)))


def damaged(setting: Setting) -> Case:
    """Cut off the end of one rank's file."""
    case = synchronous(nothing)(setting)
    rank = pick(setting)[0]
    label = Label("truncated_trace", ranks=(rank,))
    return Case(case.recording, label, damaged=rank, through_files=True)


def world_change(setting: Setting) -> Case:
    """Lose a host: the job starts again, where it was, with the ranks that are left."""
    step = int(setting.steps * 0.5)
    first_recording = synchronous(nothing)(replace(setting, steps=step)).recording
    smaller_setting = replace(
        setting, ranks=setting.ranks - setting.per_host, steps=setting.steps - step
    )
    second_recording = synchronous(nothing)(smaller_setting).recording
    last_ns, first_ns = (
        first_recording.events["end_ns"].max(),
        second_recording.events["start_ns"].min(),
    )
    assert isinstance(last_ns, int)
    assert isinstance(first_ns, int)
    delay_ns = last_ns - first_ns + RESTART_NS
    group = pl.when(pl.col("communicator").is_not_null()).then(pl.lit(world(1)))
    resumed = second_recording.events.with_columns(
        pl.col("process") + setting.ranks,
        pl.col("start_ns", "end_ns") + delay_ns,
        step=pl.when(pl.col("step") >= 0).then(pl.col("step") + step).otherwise("step"),
        communicator=group.cast(second_recording.events["communicator"].dtype),
    )
    recording = replace(
        first_recording,
        events=pl.concat([first_recording.events, resumed]),
        members=(
            *(replace(member, complete=False) for member in first_recording.members),
            *(replace(member, life=1) for member in second_recording.members),
        ),
        groups=(*first_recording.groups, *second_recording.groups),
    )
    return Case(recording, Label("restarts"), through_files=True)
