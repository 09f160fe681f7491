"""The critical path as a line: all of it while it is short, else who carries most of each stretch."""

from typing import cast

import polars as pl
import pytest
from support.runs.analysed import RUNS, report

from tracelens.analyses import critical_path
from tracelens.analyses.critical_path import CriticalPath
from tracelens.replay.path import PATH_COLUMNS


def path_of(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Return a path: process, begin, end."""
    return pl.DataFrame(rows, schema=PATH_COLUMNS, orient="row")


@pytest.mark.parametrize("run", RUNS)
def test_a_short_path_is_kept_whole(run: str) -> None:
    """Every interval of the walk is kept, in order."""
    found = cast("CriticalPath", report(RUNS[run][0]).results["critical_path"])
    assert found.stretches.equals(found.path.sort("start_ns"))


def test_a_window_cuts_what_reaches_out_of_it() -> None:
    """Its first and last stays begin and end with it."""
    path = path_of((0, 0, 10), (1, 10, 30), (0, 30, 50))
    assert critical_path.stretches_within(path, 5, 40, 9).rows() == [
        (0, 5, 10),
        (1, 10, 30),
        (0, 30, 40),
    ]
    assert critical_path.stretches_within(path, 60, 70, 9).is_empty()


def test_of_many_changes_the_process_with_most_stands_for_a_stretch() -> None:
    """Process 7 has nine tenths of the first half, in a thousand pieces, process 8 of the second."""
    changes = [
        (most if share == 0 else 9, 100 * at + (0, 90)[share], 100 * at + (90, 100)[share])
        for at in range(2000)
        for most in (7 if at < 1000 else 8,)
        for share in (0, 1)
    ]
    assert critical_path.stretches_within(path_of(*changes), 0, 200_000, 10).rows() == [
        (7, 0, 100_000),
        (8, 100_000, 200_000),
    ]


def test_thinned_stays_touch_and_cover_the_path() -> None:
    """However few are wanted, no moment of the path is lost or told twice."""
    stays = path_of(*((at * 7 % 5, at * 13, at * 13 + 13) for at in range(3000)))
    for most in (1, 3, 400):
        stretches = critical_path.stretches_within(stays, 0, 39_000, most)
        assert stretches.height <= most
        assert (stretches["start_ns"][0], stretches["end_ns"][-1]) == (0, 39_000)
        assert stretches["end_ns"][:-1].to_list() == stretches["start_ns"][1:].to_list()


def test_no_path_has_no_stays() -> None:
    assert critical_path.path_stretches(path_of()).is_empty()
