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
    events = table.rows.with_columns(pl.col("pid", "tid").cast(pl.String).fill_null("-"))
    host_events = events.filter(~_ON_DEVICE)
    pids = host_events["pid"].unique(maintain_order=True).to_list()
    rank_by_pid = _find_stated_ranks(table, host_events, pids)
    rank_by_pid |= given_by_process(table.path.name, pids, given_ranks)
    step_marks = host_events.filter(pl.col("name").cast(pl.String).str.contains(_STEP))
    marked_pids = step_marks["pid"].unique().to_list()
    rank_pids = [
        pid for pid in pids if pid in rank_by_pid or (pid in marked_pids and len(marked_pids) > 1)
    ]
    if len(rank_pids) < 2:
        table.stated_rank = rank_by_pid[rank_pids[0]] if rank_pids else None
        return [table]
    rank_pids.sort(key=lambda pid: (rank_by_pid.get(pid, 0), len(pid), pid))
    pid_of_event = _find_owners(table, events, rank_pids)
    tables = []
    for pid in rank_pids:
        rows = table.rows.filter(pid_of_event == pid)
        tables.append(replace(table, process=pid, rows=rows, stated_rank=rank_by_pid.get(pid)))
    for later_table in tables[1:]:  # what is not whole of the file is said once
        later_table.events = later_table.lost = later_table.unusable = later_table.negative = 0
        later_table.cut, later_table.left_out = False, Counter()
    table.left_out[UNOWNED] += pid_of_event.null_count()
    if not rank_by_pid:
        _rank_by_device(tables)
    return tables


def _find_stated_ranks(
    table: EventTable, host_events: pl.DataFrame, pids: Sequence[str]
) -> dict[str, int]:
    """Return the rank of each process by its name, or by its collectives."""
    rank_by_pid: dict[str, int] = {}
    rank_votes: dict[str, Counter[int]] = defaultdict(Counter)
    for pid, call_index in host_events.drop_nulls("call").select("pid", "call").rows():
        rank = table.calls[call_index].get("Rank")
        if type(rank) is int and rank >= 0:
            rank_votes[pid][rank] += 1
    for pid in pids:
        rank = rank_in_name(table.processes.get(pid, ""))
        if rank is None:
            rank = rank_in_name(pid)
        if rank is None and rank_votes[pid]:
            rank = rank_votes[pid].most_common(1)[0][0]
        if rank is not None:
            rank_by_pid[pid] = rank
    return rank_by_pid


def _find_owners(table: EventTable, events: pl.DataFrame, pids: Sequence[str]) -> pl.Series:
    """Return the process of each event, one of `pids`; null for events of other processes.

    Kernels belong to the process in whose part of the file they are; where parts are mixed, the first
    device is that of the first of `pids`.
    """
    events = events.with_row_index("at")
    owned_events = events.filter(pl.col("pid").is_in(pids))
    owner_of_event = pl.Series("owner", [None], dtype=pl.String).new_from_index(0, events.height)
    owner_of_event = owner_of_event.scatter(owned_events["at"], owned_events["pid"])
    device_events = events.filter(_ON_DEVICE, ~pl.col("pid").is_in(pids))
    if device_events.is_empty():
        return owner_of_event
    launches = owned_events.filter(pl.col("category") == "runtime").drop_nulls("correlation")
    launches = launches.select("correlation", launched="start_ns", owner="pid")
    sections = owned_events.group_by("pid").agg(first=pl.col("at").min(), last=pl.col("at").max())
    sections = sections.sort("first")
    if (sections["last"] < sections["first"].shift(-1)).all():  # one after the other, as files were
        rows = device_events["at"].to_numpy()
        section_index = np.searchsorted(sections["first"].to_numpy(), rows, "right") - 1
        owners = sections["pid"].gather(np.maximum(section_index, 0))
        device_events = device_events.with_columns(owner=owners)
    else:
        devices = device_events["device"].drop_nulls().unique().sort().to_list()
        pid_by_device = dict(zip(devices, pids, strict=False)) if len(devices) == len(pids) else {}
        owner = pl.col("device").replace_strict(pid_by_device, default=None, return_dtype=pl.String)
        device_events = device_events.with_columns(owner=owner)
    _check_owners(table, device_events, launches)
    return owner_of_event.scatter(device_events["at"], device_events["owner"])


def _check_owners(table: EventTable, device_events: pl.DataFrame, launches: pl.DataFrame) -> None:
    """Refuse kernels whose process is not certain.

    Raises:
        UnusableInput: too few were launched by their process, or streams of two processes are one.
    """
    with_correlation = device_events.drop_nulls("correlation")
    launched_events = with_correlation.join(launches, on=["correlation", "owner"])
    is_after_launch = pl.col("launched") <= pl.col("start_ns")
    launched_count = launched_events.filter(is_after_launch)["at"].n_unique()
    kernels = device_events.filter(pl.col("category") == "kernel").sort("start_ns")
    previous_end_ns = (pl.col("start_ns") + pl.col("duration_ns")).shift(1).over("owner", *_PLACE)
    is_overlapping = kernels.select(pl.col("start_ns") < previous_end_ns).to_series()
    overlapping_share = is_overlapping.mean() or 0.0
    if (
        launched_count < MIN_SHARE_LAUNCHED * with_correlation.height
        or float(overlapping_share) > MAX_SHARE_OVERLAPPING  # type: ignore[arg-type]
    ):
        raise UnusableInput(
            f"'{table.path.name}' holds profiles of several processes, and its kernels do not say of "
            "which one they are: give the file of each rank instead."
        )


def _rank_by_device(tables: Sequence[EventTable]) -> None:
    """Number processes by their devices, where each has one of its own."""
    device_columns = [table.rows.filter(_ON_DEVICE)["device"].drop_nulls() for table in tables]
    devices_of_tables = [devices.unique().to_list() for devices in device_columns]
    distinct_devices = {device for devices in devices_of_tables for device in devices}
    have_one_device = all(len(devices) == 1 for devices in devices_of_tables)
    if have_one_device and len(distinct_devices) == len(tables):
        for table, (device,) in zip(tables, devices_of_tables, strict=True):
            table.stated_rank, table.is_rank_of_device = device, True
