"""Gives processes that share a file their ranks: as their names or the user say.

The user names a file (``FILE=RANK``), whose processes are then all of that rank, or its processes one by
one (``FILE:PROCESS=RANK``). Where some have a rank, the others are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.model import fmt
from tracelens.readers.files import ReadFile
from tracelens.readers.words import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tracelens.readers.gathered import SpanBuffer

__all__ = [
    "UNOWNED",
    "FileOfProcesses",
    "ask_for_ranks",
    "given_by_process",
    "process_column",
    "rank_processes",
]

UNOWNED: Final = "events of processes of no known rank"
_SHOWN: Final = 3  # processes that a sentence names


@dataclass(eq=False)
class FileOfProcesses(ReadFile):
    """What one file holds; its rows have a column `process`, `processes` are their names by number."""

    processes: dict[int, str] = field(default_factory=dict)


def process_column(spans: SpanBuffer[Any, Any], processes: Sequence[int]) -> pl.Series:
    """Return the process of each span; `processes` are those of its places, in their order."""
    return pl.Series(processes, dtype=pl.Int64).gather(
        pl.Series(spans.thread_of_row, dtype=pl.UInt32)
    )


def given_by_process(
    file_name: str, processes: Sequence[str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process of a file that the user names.

    Raises:
        UnusableInput: the file holds no such process.
    """
    prefix = f"{file_name}:"
    rank_of_process = {
        label.removeprefix(prefix): rank
        for label, rank in given_ranks.items()
        if label.startswith(prefix)
    }
    absent = sorted(rank_of_process.keys() - set(processes))
    if absent:
        there = f"there are {_listed(processes)}" if processes else "there is none"
        raise UnusableInput(f"'{file_name}' holds no process {absent[0]}: {there}.")
    return rank_of_process


def ask_for_ranks(file_name: str, names: Mapping[str, str]) -> UnusableInput:
    """Return the question which ranks the processes of a file are; `names` are by number."""
    known = sorted({name for name in names.values() if name})
    called = f" ({_listed(known)})" if known else ""
    return UnusableInput(
        f"'{file_name}' holds {len(names)} processes, {_listed(list(names))}{called}, and does not say "
        f"which ranks they are: say so with --rank-of {file_name}:{next(iter(names))}=0, once for each "
        f"that is a rank, or with --rank-of {file_name}=RANK if all are of one."
    )


def _listed(words: Sequence[str]) -> str:
    more = [f"{len(words) - _SHOWN} more"] if len(words) > _SHOWN else []
    return fmt.series([*words[:_SHOWN], *more])


def rank_processes(files: Mapping[str, FileOfProcesses], given_ranks: Mapping[str, int]) -> None:
    """Give the rows of each file the ranks of their processes, where the file or the user says any.

    Raises:
        UnusableInput: neither says one, and the file holds several processes.
    """
    for file_name, file in files.items():
        names = {str(process): name for process, name in sorted(file.processes.items())}
        ranks: dict[str, int] = {}
        if file_name not in given_ranks:
            ranks = _ranks_of(file_name, names, given_ranks)
            if not ranks and len(names) > 1:
                raise ask_for_ranks(file_name, names)
        _set_ranks(file_name, file, ranks)


def _ranks_of(
    file_name: str, names: Mapping[str, str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process, as the user says it, else its name; empty if none is said."""
    given_rank = given_by_process(file_name, list(names), given_ranks)
    rank_of_name = {
        process: rank for process, name in names.items() if (rank := rank_in_name(name)) is not None
    }
    if not given_rank and len(rank_of_name) == 1:  # the others work for this rank
        return dict.fromkeys(names, *rank_of_name.values())
    return rank_of_name | given_rank


def _set_ranks(file_name: str, file: FileOfProcesses, ranks: Mapping[str, int]) -> None:
    """Replace the column `process` by `rank`; threads of several processes of a rank say which."""
    rows = file.rows
    if ranks:
        rank = pl.col("process").cast(pl.String).replace_strict(
            ranks, default=None, return_dtype=pl.Int32
        )  # fmt: skip
        rows = rows.with_columns(rank=rank)
        unowned = rows["rank"].null_count()
        if unowned:
            file.left_out[UNOWNED] += unowned
        rows = rows.drop_nulls("rank")
        file.says_ranks = True
        if len(set(ranks.values())) > 1:  # one timeline has one clock
            rows = rows.with_columns(clock=pl.lit(file_name, pl.Categorical()))
    if len(set(ranks.values())) < len(ranks) or (not ranks and len(file.processes) > 1):
        shares_rank = pl.lit(value=True)
        if ranks:
            shares_rank = pl.col("process").n_unique().over("rank") > 1
        called = pl.format("{} of {}", pl.col("thread").cast(pl.String), "process")
        thread = pl.when(shares_rank).then(called).otherwise(pl.col("thread").cast(pl.String))
        rows = rows.with_columns(thread=thread.cast(pl.Categorical()))
    file.rows = rows.drop("process", strict=False)
