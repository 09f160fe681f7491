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

UNOWNED: Final = "events of processes of no known rank"
_MAX_PROCESSES_SHOWN: Final = 3  # processes that a sentence names


@dataclass(eq=False)
class FileOfProcesses(ReadFile):
    """What one file holds; its rows have a column `process`, a number."""

    name_by_process: dict[int, str] = field(default_factory=dict)


def build_process_column(spans: SpanBuffer[Any, Any], processes: Sequence[int]) -> pl.Series:
    """Return the process of each span; `processes` holds that of each thread, by its number."""
    thread_numbers = pl.Series(spans.thread_numbers, dtype=pl.UInt32)
    return pl.Series(processes, dtype=pl.Int64).gather(thread_numbers)


def select_given_ranks(
    file_name: str, processes: Sequence[str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process of a file that the user names, as ``FILE:PROCESS=RANK``.

    Raises:
        UnusableInput: the file holds no such process.
    """
    prefix = f"{file_name}:"
    rank_by_process = {
        file_and_process.removeprefix(prefix): rank
        for file_and_process, rank in given_ranks.items()
        if file_and_process.startswith(prefix)
    }
    unknown_processes = sorted(rank_by_process.keys() - set(processes))
    if unknown_processes:
        present_text = f"there are {_list_names(processes)}" if processes else "there is none"
        raise UnusableInput(
            f"'{file_name}' holds no process {unknown_processes[0]}: {present_text}."
        )
    return rank_by_process


def rank_question(file_name: str, name_by_process: Mapping[str, str]) -> UnusableInput:
    """Return an error that asks for the ranks of processes; names are by number, "" if unknown."""
    processes, names = [*name_by_process], sorted({*name_by_process.values()} - {""})
    names_text = f" ({_list_names(names)})" if names else ""
    return UnusableInput(
        f"'{file_name}' holds {len(processes)} processes, {_list_names(processes)}{names_text}, and "
        f"does not say which ranks they are: say so with --rank-of {file_name}:{processes[0]}=0, once "
        f"for each that is a rank, or with --rank-of {file_name}=RANK if all are of one."
    )


def _list_names(words: Sequence[str]) -> str:
    more = (
        [f"{len(words) - _MAX_PROCESSES_SHOWN} more"] if len(words) > _MAX_PROCESSES_SHOWN else []
    )
    return fmt.join_words([*words[:_MAX_PROCESSES_SHOWN], *more])


def rank_processes(
    file_by_name: Mapping[str, FileOfProcesses], given_ranks: Mapping[str, int]
) -> None:
    """Give the rows of each file the ranks of their processes, as the file or the user says.

    Raises:
        UnusableInput: neither says one, and the file holds several processes.
    """
    for file_name, file in file_by_name.items():
        names = {str(process): name for process, name in sorted(file.name_by_process.items())}
        rank_by_process: dict[str, int] = {}  # empty if all are of the file's rank
        if file_name not in given_ranks:
            rank_by_process = _find_ranks(file_name, names, given_ranks)
            if not rank_by_process and len(names) > 1:
                raise rank_question(file_name, names)
        _set_ranks(file_name, file, rank_by_process)


def _find_ranks(
    file_name: str, name_by_process: Mapping[str, str], given_ranks: Mapping[str, int]
) -> dict[str, int]:
    """Return the rank of each process, as the user says it, else its name; empty if none is said."""
    given_rank_by_process = select_given_ranks(file_name, list(name_by_process), given_ranks)
    rank_by_process = {
        process: rank
        for process, name in name_by_process.items()
        if (rank := rank_in_name(name)) is not None
    }
    if not given_rank_by_process and len(rank_by_process) == 1:  # the others work for this rank
        return dict.fromkeys(name_by_process, *rank_by_process.values())
    return rank_by_process | given_rank_by_process


def _set_ranks(file_name: str, file: FileOfProcesses, rank_by_process: Mapping[str, int]) -> None:
    """Replace the column `process` of a file's rows by `rank`; keep none if no rank is known.

    Threads are named with their process where several share a rank. Spans of processes without a rank
    are left out, unless no process has one.
    """
    rows, ranks = file.rows, {*rank_by_process.values()}
    if ranks:
        process_text = pl.col("process").cast(pl.String)
        rank = process_text.replace_strict(rank_by_process, default=None, return_dtype=pl.Int32)
        rows = rows.with_columns(rank=rank)
        unowned_count = rows["rank"].null_count()
        if unowned_count:
            file.left_out_counts[UNOWNED] += unowned_count
        rows = rows.drop_nulls("rank")
        file.has_rank_column = True
        if len(ranks) > 1:  # one timeline has one clock
            rows = rows.with_columns(clock=pl.lit(file_name, pl.Categorical()))
    if len(ranks) < len(rank_by_process) or (not ranks and len(file.name_by_process) > 1):
        shares_rank = pl.lit(value=True)
        if ranks:
            shares_rank = pl.col("process").n_unique().over("rank") > 1
        thread = pl.col("thread").cast(pl.String)
        qualified_thread = pl.format("{} of {}", thread, "process")
        thread = pl.when(shares_rank).then(qualified_thread).otherwise(thread)
        rows = rows.with_columns(thread=thread.cast(pl.Categorical()))
    file.rows = rows.drop("process", strict=False)
