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
    """Return the process of each span; `processes` holds one for each of `spans.threads`."""
    thread_of_row = pl.Series(spans.thread_of_row, dtype=pl.UInt32)
    return pl.Series(processes, dtype=pl.Int64).gather(thread_of_row)


def given_by_process(
    file_name: str, processes: Sequence[str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process of a file that the user names.

    Raises:
        UnusableInput: the file holds no such process.
    """
    prefix = f"{file_name}:"
    rank_of_process = {
        file_and_process.removeprefix(prefix): rank
        for file_and_process, rank in given_ranks.items()
        if file_and_process.startswith(prefix)
    }
    unknown_processes = sorted(rank_of_process.keys() - set(processes))
    if unknown_processes:
        present = f"there are {_listed(processes)}" if processes else "there is none"
        raise UnusableInput(f"'{file_name}' holds no process {unknown_processes[0]}: {present}.")
    return rank_of_process


def ask_for_ranks(file_name: str, names: Mapping[str, str]) -> UnusableInput:
    """Return an error that asks for the ranks of processes; `names` are by number."""
    known_names = sorted({name for name in names.values() if name})
    names_text = f" ({_listed(known_names)})" if known_names else ""
    return UnusableInput(
        f"'{file_name}' holds {len(names)} processes, {_listed(list(names))}{names_text}, and does "
        f"not say which ranks they are: say so with --rank-of {file_name}:{next(iter(names))}=0, once "
        f"for each that is a rank, or with --rank-of {file_name}=RANK if all are of one."
    )


def _listed(words: Sequence[str]) -> str:
    more = [f"{len(words) - _SHOWN} more"] if len(words) > _SHOWN else []
    return fmt.series([*words[:_SHOWN], *more])


def rank_processes(files: Mapping[str, FileOfProcesses], given_ranks: Mapping[str, int]) -> None:
    """Give the rows of each file the ranks of their processes, as the file or the user says.

    Raises:
        UnusableInput: neither says one, and the file holds several processes.
    """
    for file_name, file in files.items():
        names = {str(process): name for process, name in sorted(file.processes.items())}
        rank_by_process: dict[str, int] = {}
        if file_name not in given_ranks:
            rank_by_process = _find_ranks(file_name, names, given_ranks)
            if not rank_by_process and len(names) > 1:
                raise ask_for_ranks(file_name, names)
        _set_ranks(file_name, file, rank_by_process)


def _find_ranks(
    file_name: str, names: Mapping[str, str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process, as the user says it, else its name; empty if none is said."""
    given_rank_by_number = given_by_process(file_name, list(names), given_ranks)
    rank_by_name = {
        number: rank for number, name in names.items() if (rank := rank_in_name(name)) is not None
    }
    if not given_rank_by_number and len(rank_by_name) == 1:  # the others work for this rank
        return dict.fromkeys(names, *rank_by_name.values())
    return rank_by_name | given_rank_by_number


def _set_ranks(file_name: str, file: FileOfProcesses, ranks: Mapping[str, int]) -> None:
    """Replace the column `process` by `rank`; `ranks` are by process, empty if they are not known.

    Threads are named with their process where several share a rank. Spans of others are left out.
    """
    rows = file.rows
    if ranks:
        rank = pl.col("process").cast(pl.String).replace_strict(
            ranks, default=None, return_dtype=pl.Int32
        )  # fmt: skip
        rows = rows.with_columns(rank=rank)
        unowned_count = rows["rank"].null_count()
        if unowned_count:
            file.left_out[UNOWNED] += unowned_count
        rows = rows.drop_nulls("rank")
        file.says_ranks = True
        if len(set(ranks.values())) > 1:  # one timeline has one clock
            rows = rows.with_columns(clock=pl.lit(file_name, pl.Categorical()))
    if len(set(ranks.values())) < len(ranks) or (not ranks and len(file.processes) > 1):
        shares_rank = pl.lit(value=True)
        if ranks:
            shares_rank = pl.col("process").n_unique().over("rank") > 1
        thread = pl.col("thread").cast(pl.String)
        qualified_thread = pl.format("{} of {}", thread, "process")
        thread = pl.when(shares_rank).then(qualified_thread).otherwise(thread)
        rows = rows.with_columns(thread=thread.cast(pl.Categorical()))
    file.rows = rows.drop("process", strict=False)
