"""Pauses that many ranks make at different times are told, though noise hides most of their cost."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from support.runs.matrices import STEP_NS, healthy, own_time

from tracelens.analyses.stragglers import turns
from tracelens.model.findings import Finding


def _find_pauses(
    length: float, paused: npt.NDArray[np.bool_], *, meet: bool = True
) -> list[Finding]:
    """Analyze 64 ranks that pause, where another rank is later; `meet`: all wait for each other."""
    matrices = healthy(0, 64, 60)
    compute_time = own_time(matrices)
    late = STEP_NS * (np.arange(60)[:, None] % 10 != 0) * (np.arange(64) == 0)
    gc = length * STEP_NS * paused
    table = np.stack([*compute_time.compute_ns, gc])
    table[2] += late
    step_ns = table.sum(axis=0)
    widest = np.broadcast_to(step_ns.max(axis=1, keepdims=True), step_ns.shape) if meet else step_ns
    compute_time = replace(
        compute_time,
        phase_names=(*compute_time.phase_names, "gc"),
        compute_ns=table,
        step_length_ns=widest,
        wait_ns=widest - step_ns,
    )
    turn_order = turns.find_turns(compute_time, int(widest[:, 0].sum()))
    return [pause for pause in turn_order if pause.phase == "gc"]


def test_long_pauses_in_most_steps_are_told() -> None:
    """Each step somebody pauses for 0.4 of it, and yet only a tenth of the steps are longer."""
    everywhere = (np.arange(60)[:, None] + np.arange(64)) % 25 == 0
    (finding,) = _find_pauses(0.4, everywhere)
    assert finding.kind == "gc_stall"
    assert finding.saving is not None
    assert turns.MIN_SAVING_OF_PLAIN_PAUSES < finding.saving < turns.MIN_SAVING_OF_TURNS


def test_few_or_short_pauses_are_not() -> None:
    """What hardly costs must at least be seen often, and be more than a blink."""
    everywhere = (np.arange(60)[:, None] + np.arange(64)) % 25 == 0
    seldom = everywhere & (np.arange(60)[:, None] % 10 == 0)
    assert _find_pauses(0.05, everywhere) == []
    assert _find_pauses(0.4, seldom) == []


def test_pauses_that_no_rank_waits_for_are_not() -> None:
    """Ranks that never meet pause each for itself."""
    everywhere = (np.arange(60)[:, None] + np.arange(64)) % 25 == 0
    assert _find_pauses(0.4, everywhere, meet=False) == []


def _find_delays(matrices: list[npt.NDArray[np.float64]]) -> list[Finding]:
    compute_time = own_time(matrices)
    return turns.find_turns(compute_time, int(compute_time.step_length_ns[:, 0].sum()))


def test_one_long_pause_is_not_told_as_several_short_ones() -> None:
    """Two ranks are a little late in other steps, which is no part of a pause of 100 steps."""
    matrices = healthy(0, 3, 60)
    matrices[1][40, 1] += 100.0
    matrices[1][[20, 50], [0, 1]] += 0.5
    (finding,) = _find_delays(matrices)
    assert (finding.ranks, finding.steps, finding.evidence["steps_late"]) == ((1,), (40, 40), 1)


def test_two_long_pauses_of_two_ranks_do_not_name_a_third() -> None:
    matrices = healthy(0, 3, 60)
    matrices[1][[30, 40], [1, 2]] += 100.0
    matrices[1][[20, 50], [0, 0]] += 0.5
    (finding,) = _find_delays(matrices)
    assert (finding.ranks, finding.steps, finding.pattern) == ((1, 2), (30, 40), "migrating")


def test_many_short_pauses_beside_a_long_one_are_told() -> None:
    """Together they are as long."""
    matrices = healthy(0, 3, 60)
    matrices[1][40, 1] += 20.0
    matrices[1][11:51:2, 2] += 0.9
    (finding,) = _find_delays(matrices)
    assert finding.ranks == (1, 2)
    assert finding.evidence["steps_late"] == 21
