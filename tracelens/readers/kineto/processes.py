"""Splits a file that holds several processes, such as merged profiles: each becomes a table of its own.

A process is of the rank that its name says ("rank 3"), or its collectives ("Rank"), its device, or the
user. Kernels name no process: they belong to the one that launched them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.errors import UnusableInput
from tracelens.readers.processes import UNOWNED, given_by_process
from tracelens.readers.words import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.readers.kineto.columns import EventTable

__all__ = ["split_processes"]

# share of a process's kernels: if more overlap another one of their stream, it is two streams [chosen]
MAX_SHARE_OVERLAPPING: Final = 0.05
# share of a process's kernels: if it launched fewer of them, kernels cannot be told apart [chosen]
MIN_SHARE_LAUNCHED: Final = 0.9
_STEP: Final = r"^ProfilerStep\s*#"
_ON_DEVICE: Final = pl.col("category").cast(pl.String).is_in(["kernel", "copy"])
_PLACE: Final = ("pid", "tid", "device")


def split_processes(table: EventTable, given_ranks: Mapping[str, int]) -> list[EventTable]:
    """Return a table for each process that is a rank; the table itself where it holds one rank.

    `given_ranks` are the ranks that the user says, by file, or by file and process.

    Raises:
        UnusableInput: kernels do not show which of several processes launched them, or there is no
            process that the user names.
    """
    rows = table.rows.with_columns(pl.col("pid", "tid").cast(pl.String).fill_null("-"))
    on_host = rows.filter(~_ON_DEVICE)
    present = on_host["pid"].unique(maintain_order=True).to_list()
    ranks = _ranks_stated(table, on_host, present)
    ranks |= given_by_process(table.path.name, present, given_ranks)
    marks = on_host.filter(pl.col("name").cast(pl.String).str.contains(_STEP))
    marked = marks["pid"].unique().to_list()
    owners = [pid for pid in present if pid in ranks or (pid in marked and len(marked) > 1)]
    if len(owners) < 2:
        table.stated_rank = ranks[owners[0]] if owners else None
        return [table]
    owners.sort(key=lambda pid: (ranks.get(pid, 0), len(pid), pid))
    owner = _owners_of_rows(table, rows, owners)
    tables = [
        replace(
            table, process=pid, rows=table.rows.filter(owner == pid), stated_rank=ranks.get(pid)
        )
        for pid in owners
    ]
    for copy in tables[1:]:  # what is not whole of the file is said once
        copy.events = copy.lost = copy.unusable = copy.negative = 0
        copy.cut, copy.left_out = False, Counter()
    table.left_out[UNOWNED] += owner.null_count()
    if not ranks:
        _take_devices(tables)
    return tables


def _ranks_stated(
    table: EventTable, on_host: pl.DataFrame, present: Sequence[str]
) -> dict[str, int]:
    """Return the rank of each process by its name, or by its collectives."""
    ranks: dict[str, int] = {}
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for pid, call in on_host.drop_nulls("call").select("pid", "call").rows():
        rank = table.calls[call].get("Rank")
        if type(rank) is int and rank >= 0:
            votes[pid][rank] += 1
    for pid in present:
        named = rank_in_name(table.processes.get(pid, "")) if pid in table.processes else None
        rank = rank_in_name(pid) if named is None else named
        if rank is None and votes[pid]:
            rank = votes[pid].most_common(1)[0][0]
        if rank is not None:
            ranks[pid] = rank
    return ranks


def _owners_of_rows(table: EventTable, rows: pl.DataFrame, owners: Sequence[str]) -> pl.Series:
    """Return the process of each row; null for rows of no process.

    Kernels belong to the process in whose part of the file they are; where parts are mixed, the first
    device is that of the first of `owners`.
    """
    rows = rows.with_row_index("at")
    owned = rows.filter(pl.col("pid").is_in(owners))
    owner = pl.Series("owner", [None], dtype=pl.String).new_from_index(0, rows.height)
    owner = owner.scatter(owned["at"], owned["pid"])
    device = rows.filter(_ON_DEVICE, ~pl.col("pid").is_in(owners))
    if device.is_empty():
        return owner
    launches = owned.filter(pl.col("category") == "runtime").drop_nulls("correlation")
    launches = launches.select("correlation", launched="start_ns", owner="pid")
    sections = owned.group_by("pid").agg(first=pl.col("at").min(), last=pl.col("at").max())
    sections = sections.sort("first")
    if (sections["last"] < sections["first"].shift(-1)).all():  # one after the other, as files were
        at = np.searchsorted(sections["first"].to_numpy(), device["at"].to_numpy(), "right") - 1
        device = device.with_columns(owner=sections["pid"].gather(np.maximum(at, 0)))
    else:
        devices = device["device"].drop_nulls().unique().sort().to_list()
        of_device = dict(zip(devices, owners, strict=False)) if len(devices) == len(owners) else {}
        known = pl.col("device").replace_strict(of_device, default=None, return_dtype=pl.String)
        device = device.with_columns(owner=known)
    _check_owners(table, device, launches)
    return owner.scatter(device["at"], device["owner"])


def _check_owners(table: EventTable, device: pl.DataFrame, launches: pl.DataFrame) -> None:
    """Refuse kernels whose process is not certain.

    Raises:
        UnusableInput: too few were launched by their process, or streams of two processes are one.
    """
    with_correlation = device.drop_nulls("correlation")
    pairs = with_correlation.join(launches, on=["correlation", "owner"])
    launched = pairs.filter(pl.col("launched") <= pl.col("start_ns"))["at"].n_unique()
    kernels = device.filter(pl.col("category") == "kernel").sort("start_ns")
    ended = (pl.col("start_ns") + pl.col("duration_ns")).shift(1).over("owner", *_PLACE)
    overlapping = (kernels.select(pl.col("start_ns") < ended).to_series().mean()) or 0.0
    if (
        launched < MIN_SHARE_LAUNCHED * with_correlation.height
        or float(overlapping) > MAX_SHARE_OVERLAPPING  # type: ignore[arg-type]
    ):
        raise UnusableInput(
            f"'{table.path.name}' holds profiles of several processes, and its kernels do not say of "
            "which one they are: give the file of each rank instead."
        )


def _take_devices(tables: Sequence[EventTable]) -> None:
    """Number processes by their devices, where each has one of its own."""
    devices = [
        table.rows.filter(_ON_DEVICE)["device"].drop_nulls().unique().to_list() for table in tables
    ]
    if all(len(some) == 1 for some in devices) and len({some[0] for some in devices}) == len(
        tables
    ):
        for table, (device,) in zip(tables, devices, strict=True):
            table.stated_rank, table.is_rank_of_device = device, True
