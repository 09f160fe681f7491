"""Profiles that begin in different steps are put side by side by their calls, or that is said."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.profiles import gpu_profile, write_ranks

import tracelens as tl
from tracelens.readers.kineto import windows


def offsets_ms(trace: tl.Trace) -> set[int]:
    """Return the distances between the begins of equal steps."""
    steps = trace.steps.pivot(on="rank", index="step", values="start_ns").drop_nulls()
    return set(((steps["1"] - steps["0"]) / 1e6).round().cast(pl.Int64).to_list())


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("skipped", [0, 1, 3])
def test_steps_are_those_of_the_calls(skipped: int, tmp_path: Path, *, numbered: bool) -> None:
    """Steps are matched by sequence numbers or exits; equal steps then begin together."""
    write_ranks(tmp_path, lambda rank: gpu_profile(rank, skipped=skipped * rank, numbered=numbered))
    trace = tl.open(tmp_path)
    assert offsets_ms(trace) == {0}
    assert trace.steps.group_by("rank").len()["len"].to_list() == [20 - skipped] * 2
    said = [note.sentence for note in trace.notes if "begins" in note.sentence]
    later = f"rank 1 begins {skipped} step{'s' * (skipped > 1)} later"
    assert [later in sentence for sentence in said] == ([True] if skipped else [])


def test_exits_tell_where_clocks_do_not(tmp_path: Path) -> None:
    """A clock that is a minute off, and no numbers: of the right steps, exits scatter least."""
    write_ranks(
        tmp_path,
        lambda rank: gpu_profile(rank, skipped=2 * rank, numbered=False, clock_us=6e7 * rank),
    )
    trace = tl.open(tmp_path)
    assert offsets_ms(trace) == {0}
    assert any("rank 1 begins 2 steps later" in note.sentence for note in trace.notes)


def test_what_cannot_be_told_is_said(tmp_path: Path) -> None:
    """Steps that are all alike, by clocks that disagree."""
    write_ranks(
        tmp_path,
        lambda rank: gpu_profile(rank, numbered=False, varies=False, clock_us=6e7 * rank),
    )
    trace = tl.open(tmp_path)
    assert trace.recognition
    assert any("may begin in another step" in gap.missing for gap in trace.recognition.gaps)


def make_exits(first: int, gap: int, count: int = 6) -> windows._Exits:
    """Steps that are `gap` apart, and exits at irregular times that are equal for all ranks."""
    exits_ns = np.cumsum(np.random.default_rng(1).integers(10**7, 10**8, count))
    return windows._Exits(first + gap * np.arange(count), exits_ns)


@pytest.mark.parametrize("gap", [1, 400_000_000])
def test_step_numbers_with_gaps_are_compared_as_quickly(gap: int) -> None:
    """Only shifts that bring steps together are tried, not all numbers in between."""
    peer, rank = make_exits(0, gap), make_exits(7 * gap, gap)
    assert windows._find_shift_by_exits(peer, rank, have_one_clock=True) == -7 * gap
    assert len(windows._list_possible_shifts(peer.steps, rank.steps)) <= 12
    if gap > 1:
        many = gap * np.arange(3000)
        assert windows._list_possible_shifts(many, many + 1) == ()
