"""Traces on disk with their index, for tests of the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens import load
from tracelens.lod import opening
from tracelens.simulator.synthetic import Fault, Scenario, write

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.lod.run_data import Run

SLOW = Scenario(ranks=3, steps=30, faults=(Fault("data", (1,), steps=(10, 19), extra_ms=8),))


def recorded(folder: Path, scenario: Scenario = SLOW) -> Path:
    """Write a simulated trace into a folder."""
    write(scenario, folder)
    return folder


def explained(trace: Path) -> Run:
    """Make the index of a trace, all of it."""
    made = opening.explain_trace(load.open(trace))
    opening.refine_index(made)
    return made
