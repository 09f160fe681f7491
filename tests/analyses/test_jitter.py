"""Jitter is what ranks wait for each other in turns: neither for one of them, nor in few steps."""

import numpy as np
import polars as pl
import pytest
from support.runs.traces import call, span, trace_of

import tracelens as tl
from tracelens.accounting.jitter import ALONE_COLUMNS, Waits, find_few_outlying_steps
from tracelens.load import prepare

MS = 10**6
STEPS, RANKS = 200, 3


def waits(alone: dict[tuple[int, int], float], waited: dict[int, float] | None = None) -> Waits:
    """Return waits for a rank in each step in ms: per waiting rank, or as a sum over all ranks."""
    rows = [(rank, step, ms * MS, (ms * MS) ** 2 * 2 / 9) for (rank, step), ms in alone.items()]
    table = pl.DataFrame(rows, schema=ALONE_COLUMNS, orient="row")
    in_all = np.zeros(STEPS)
    for (_, step), ms in alone.items():
        in_all[step] += (RANKS - 1) * ms * MS
    for step, ms in (waited or {}).items():
        in_all[step] += ms * MS
    return Waits(tuple(range(RANKS)), table, np.arange(STEPS), in_all)


def jitter(found: Waits, named: set[int] | None = None) -> float:
    return found.measure_jitter_share(named or set(), dict.fromkeys(range(RANKS), 0))


IN_TURNS = {(step % RANKS, step): 2.0 for step in range(STEPS)}


def test_waits_in_turns_are_jitter() -> None:
    assert jitter(waits(IN_TURNS)) == pytest.approx(1.0)


@pytest.mark.parametrize("often", [1, 3, 8])
@pytest.mark.parametrize("turns", [1, RANKS], ids=["one rank", "in turns"])
def test_waits_in_few_steps_are_none(often: int, turns: int) -> None:
    """Whoever is late in them: by chance, that rank would be late by as much as it is."""
    rare = {(number % turns, 20 * number): 500.0 for number in range(often)}
    found = jitter(waits(IN_TURNS | rare))
    usual, extra = 2.0 * STEPS, 500.0 * often
    assert found == pytest.approx(usual / (usual + extra), rel=0.05)


def test_waits_for_several_ranks_at_once_in_few_steps_are_none() -> None:
    """Then all wait for no single rank."""
    found = jitter(waits(IN_TURNS, {50: 1000.0, 120: 1000.0}))
    assert found == pytest.approx(800 / 2800, rel=0.05)


def test_waits_for_one_rank_are_none() -> None:
    longer = {(0, step): 6.0 for step in range(0, STEPS, 2)}
    found = jitter(waits({(1 + step % 2, step): 2.0 for step in range(STEPS)} | longer))
    assert found < 0.75


def test_who_is_named_is_not_asked() -> None:
    """What others waited for it is not among what is few or often."""
    assert jitter(waits(IN_TURNS | {(0, 50): 900.0}), {0}) == pytest.approx(1.0)


def test_a_run_of_one_step_has_no_jitter() -> None:
    """What the steps are is not known: nothing says that ranks wait for each other in turns."""
    assert find_few_outlying_steps(np.ones(1)).all()


@pytest.mark.parametrize("steps", [2, 4, 40, 400])
def test_no_step_of_noise_is_rare(steps: int) -> None:
    noise = np.abs(np.random.default_rng(steps).normal(size=steps))
    assert not find_few_outlying_steps(noise).any()
    assert not find_few_outlying_steps(np.zeros(steps)).any()


def test_a_run_whose_loss_is_in_few_steps_is_not_called_healthy() -> None:
    """The verdict says for whom the others waited, in which steps, and between what."""
    rows, begin_ns = [], 0
    for step in range(STEPS):
        end_ns = begin_ns + (400 if step in {60, 110} else 10) * MS
        for rank in range(RANKS):
            late_ns = end_ns - 3 * MS if rank == 0 else begin_ns + (6 + (step + rank) % 3) * MS
            rows += [
                span(rank, "step", begin_ns, end_ns, step=step),
                span(rank, "forward", late_ns - 2 * MS, late_ns, step=step, depth=1),
                call(rank, step, late_ns, end_ns - MS, step=step, thread=0, depth=1),
                span(rank, "update", end_ns - MS, end_ns, step=step, depth=1),
            ]
        begin_ns = end_ns
    verdict = tl.analyze(prepare(trace_of(rows, RANKS))).verdict
    assert verdict.state == "fault"
    assert verdict.why.startswith(
        "Rank 0 is late in uninstrumented code in steps 60 and 110, by 390 ms"
    )
    assert "between optimizer update and forward" in verdict.action
