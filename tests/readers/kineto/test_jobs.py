"""Files of different jobs are refused in one sentence, in a folder and named one by one."""

import json
from pathlib import Path

import pytest
from support.profiles import gpu_profile, write_ranks

import tracelens as tl
from tracelens.errors import UnusableInput
from tracelens.load import open_joined
from tracelens.readers.jobs import RankFile, check_one_job

HOUR = 3_600_000_000_000
BEGIN = 1_750_000_000_000_000_000


@pytest.mark.parametrize("is_folder", [True, False])
def test_ranks_of_different_days_are_refused(tmp_path: Path, *, is_folder: bool) -> None:
    """240 days apart, though their collectives have the same numbers."""
    write_ranks(tmp_path, lambda rank: gpu_profile(rank, clock_us=rank * 20_787_433e6))
    paths = [tmp_path] if is_folder else [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    with pytest.raises(UnusableInput, match=r"'rank1\.json' begins .* after 'rank0\.json' ends"):
        open_joined(paths)


def test_ranks_of_different_worlds_are_refused(tmp_path: Path) -> None:
    for rank, world in ((0, 2), (1, 8)):
        content = gpu_profile(rank)
        content["distributedInfo"]["world_size"] = world
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    with pytest.raises(
        UnusableInput, match=r"'rank0\.json' is of a job of 2 ranks, and 'rank1\.json'"
    ):
        tl.open(tmp_path)


def test_windows_of_one_job_may_be_hours_apart() -> None:
    """A schedule that repeats gives each rank several; clocks that count from a boot say nothing."""
    windows = [(rank, BEGIN + begin) for begin in (0, 5 * HOUR) for rank in (0, 1)]
    check_one_job(RankFile("f", rank, 2, at, at + 1) for rank, at in windows)
    check_one_job(RankFile("f", rank, 2, rank * 50 * HOUR, rank * 50 * HOUR + 1) for rank in (0, 1))
    with pytest.raises(UnusableInput, match="different jobs"):
        check_one_job(
            RankFile("f", r, 2, BEGIN + r * 2 * HOUR, BEGIN + r * 2 * HOUR) for r in (0, 1)
        )
