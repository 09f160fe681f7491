"""Ranks that join or leave while a simulated job runs, by step, and the communicators that they form.

Whenever the set of ranks changes, the present ranks form a new communicator, as elastic launchers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracelens.simulator.sheet import WORLD_UID

if TYPE_CHECKING:
    from tracelens.arrays import Flags
    from tracelens.simulator.scenario import Scenario


@dataclass(frozen=True)
class Epoch:
    """Steps from `first_step` to `last_step`, inclusive, with the same ranks; `uid` is their world's."""

    uid: str
    first_step: int
    last_step: int
    ranks: tuple[int, ...]


def find_presence(scenario: Scenario) -> Flags:
    """Return True for each present rank, [step, rank]."""
    is_present = np.ones((scenario.steps, scenario.ranks), np.bool_)
    for rank, (first, last) in scenario.present:
        is_present[:first, rank] = is_present[last + 1 :, rank] = False
    return is_present


def list_epochs(scenario: Scenario) -> list[Epoch]:
    """Divide the run into epochs with the same present ranks."""
    is_present = find_presence(scenario)
    change_steps = np.flatnonzero((is_present[1:] != is_present[:-1]).any(axis=1)) + 1
    first_steps = [0, *change_steps.tolist()]
    last_steps = [first_step - 1 for first_step in first_steps[1:]] + [scenario.steps - 1]
    return [
        Epoch(
            uid=WORLD_UID if number == 0 else f"{WORLD_UID}-{number}",
            first_step=first_step,
            last_step=last_step,
            ranks=tuple(np.flatnonzero(is_present[first_step]).tolist()),
        )
        for number, (first_step, last_step) in enumerate(zip(first_steps, last_steps, strict=True))
    ]


def find_communicators(scenario: Scenario) -> Any:
    """Return the world's uid: one word, or, where the world changes, one per step, [step, 1]."""
    run_epochs = list_epochs(scenario)
    if len(run_epochs) == 1:
        return WORLD_UID
    step_counts = [epoch.last_step - epoch.first_step + 1 for epoch in run_epochs]
    return np.repeat([epoch.uid for epoch in run_epochs], step_counts)[:, None]


def drop_absent_events(scenario: Scenario, process: int, events: pl.DataFrame) -> pl.DataFrame:
    """Drop what a rank does in steps in which it is absent."""
    for rank, (first, last) in scenario.present:
        if rank == process:
            return events.filter(pl.col("step").is_between(first, last))
    return events
