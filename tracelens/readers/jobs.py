"""Refuses files of different jobs, which are not one run: their world sizes or their days differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.errors import UnusableInput
from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterable

# ns: no rank of a job is profiled as long after all others, whatever their clocks are apart [chosen]
MAX_TIME_BETWEEN_RANKS_NS: Final = 3_600_000_000_000
_FIRST_DATE_NS: Final = 10**18  # ns since 1970, in 2001: clocks that show less count from a boot
_ONE_BY_ONE: Final = "files of different jobs are not one run. Analyze them one by one."


class RankFile(NamedTuple):
    """A file of a rank: the world size that it says, 0 if it says none, and its first and last time."""

    file_name: str
    rank: int
    world_size: int
    first_ns: int
    last_ns: int


def check_one_job(files: Iterable[RankFile]) -> None:
    """Refuse files that cannot be of one job.

    Times are compared only if they are dates. Files of one rank may be far apart: it was profiled twice.

    Raises:
        UnusableInput: their world sizes differ, or ranks were recorded at times far apart.
    """
    ordered_files = sorted(files, key=lambda file: file.first_ns)
    file_by_world_size = {
        file.world_size: file.file_name for file in ordered_files if file.world_size
    }
    if len(file_by_world_size) > 1:
        (world_size, name), (other_world_size, other_name) = sorted(file_by_world_size.items())[:2]
        raise UnusableInput(
            f"'{name}' is of a job of {fmt.count(world_size, 'rank')}, and '{other_name}' of one of "
            f"{other_world_size:,}: {_ONE_BY_ONE}"
        )
    if not ordered_files or ordered_files[0].first_ns < _FIRST_DATE_NS:
        return
    last_file_to_end = ordered_files[0]
    for index, file in enumerate(ordered_files):
        pause_ns = file.first_ns - last_file_to_end.last_ns
        earlier_ranks = {earlier.rank for earlier in ordered_files[:index]}
        later_ranks = {later.rank for later in ordered_files[index:]}
        if pause_ns > MAX_TIME_BETWEEN_RANKS_NS and not earlier_ranks & later_ranks:
            raise UnusableInput(
                f"'{file.file_name}' begins {fmt.duration(pause_ns)} after "
                f"'{last_file_to_end.file_name}' ends, and they are of different ranks: {_ONE_BY_ONE}"
            )
        last_file_to_end = max(last_file_to_end, file, key=lambda candidate: candidate.last_ns)
