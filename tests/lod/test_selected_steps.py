"""The timeline of selected steps marks the ranges that were not selected."""

from pathlib import Path

import numpy as np
from support.runs.indexes import SLOW, recorded

from tracelens import load
from tracelens.lod.lanes import CODES, UNSELECTED
from tracelens.lod.run_data import Run
from tracelens.verdicts.report import analyze


def codes_between(folder: Path, steps: str) -> tuple[set[int], set[int]]:
    """Return the codes of pieces within and between the steps that were asked for, of all ranks."""
    trace = load.open(folder, steps=steps)
    lanes = Run.from_trace(trace, analyze(trace)).scene.span_lanes
    within_codes: set[int] = set()
    between_codes: set[int] = set()
    for row, lane in enumerate(lanes.owners):
        own_steps = trace.steps.filter(process=lane.process).sort("start_ns")
        span_items = slice(lanes.item_offsets[row], lanes.item_offsets[row + 1])
        starts, codes = lanes.starts_ns[span_items], lanes.palette_codes[span_items]
        step = np.searchsorted(own_steps["start_ns"], starts, side="right") - 1
        is_inside = starts < own_steps["end_ns"].to_numpy()[step]
        within_codes |= {*codes[is_inside].tolist()}
        between_codes |= {*codes[~is_inside].tolist()}
    return within_codes, between_codes


def test_what_was_not_selected_is_not_unrecorded(tmp_path: Path) -> None:
    """Between the ranges it is said; within them as in the whole run."""
    folder = recorded(tmp_path / "run", SLOW)
    within, between = codes_between(folder, "5-8,20-22")
    assert between == {CODES[UNSELECTED]}
    assert CODES[UNSELECTED] not in within
    assert CODES["backprop"] in within


def test_one_range_has_nothing_between(tmp_path: Path) -> None:
    """All time of a range is of its steps."""
    within, between = codes_between(recorded(tmp_path / "run", SLOW), "5-8")
    assert between == set()
    assert CODES[UNSELECTED] not in within
