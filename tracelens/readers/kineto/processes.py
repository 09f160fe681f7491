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
from tracelens.readers.processes import UNOWNED, select_given_ranks
from tracelens.readers.words import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.readers.kineto.columns import EventTable

# share of a process's kernels: if more overlap another one of their stream, it is two streams [chosen]
MAX_SHARE_OVERLAPPING: Final = 0.05
# share of a process's kernels: if it launched fewer of them, kernels cannot be told apart [chosen]
MIN_SHARE_LAUNCHED: Final = 0.9
_STEP: Final = r"^ProfilerStep\s*#"
_IS_ON_DEVICE: Final = pl.col("category").cast(pl.String).is_in(["kernel", "copy"])
_STREAM_KEY: Final = ("pid", "tid", "device")


def split_processes(table: EventTable, given_ranks: Mapping[str, int]) -> list[EventTable]:
    """Return a table for each process that is a rank; the table itself where it holds one rank.

    A process is a rank if its rank is known, or if it and other processes mark steps. `given_ranks` are
    the ranks that the user states, by file, or by file and process.

    Raises:
        UnusableInput: kernels do not show which of several processes launched them, or there is no
            process that the user names.
    """
    events = table.rows.with_columns(pl.col("pid", "tid").cast(pl.String).fill_null("-"))
    host_events = events.filter(~_IS_ON_DEVICE)
    pids = host_events["pid"].unique(maintain_order=True).to_list()
    rank_by_pid = _find_stated_ranks(table, host_events, pids)
    rank_by_pid |= select_given_ranks(table.path.name, pids, given_ranks)
    step_marks = host_events.filter(pl.col("name").cast(pl.String).str.contains(_STEP))
    step_pids = step_marks["pid"].unique().to_list()
    rank_pids = [
        pid for pid in pids if pid in rank_by_pid or (pid in step_pids and len(step_pids) > 1)
    ]
    if len(rank_pids) < 2:
        table.stated_rank = rank_by_pid[rank_pids[0]] if rank_pids else None
        return [table]
    rank_pids.sort(key=lambda pid: (rank_by_pid.get(pid, 0), len(pid), pid))
    pid_of_event = _find_owners(table, events, rank_pids)
    tables = []
    for pid in rank_pids:
        rows = table.rows.filter(pid_of_event == pid)
        tables.append(replace(table, selected_pid=pid, rows=rows, stated_rank=rank_by_pid.get(pid)))
    for later_table in tables[1:]:  # what is not whole of the file is said once
        later_table.event_count = later_table.lost_count = 0
        later_table.unusable_count = later_table.negative_count = 0
        later_table.is_cut, later_table.left_out_counts = False, Counter()
    table.left_out_counts[UNOWNED] += pid_of_event.null_count()
    if not rank_by_pid:
        _rank_by_device(tables)
    return tables


def _find_stated_ranks(
    table: EventTable, host_events: pl.DataFrame, pids: Sequence[str]
) -> dict[str, int]:
    """Return the rank of each process by its name, or as most of its collectives say; by pid."""
    rank_by_pid: dict[str, int] = {}
    rank_votes: dict[str, Counter[int]] = defaultdict(Counter)
    for pid, call_index in host_events.drop_nulls("call_index").select("pid", "call_index").rows():
        rank = table.call_facts[call_index].get("Rank")
        if type(rank) is int and rank >= 0:
            rank_votes[pid][rank] += 1
    for pid in pids:
        rank = rank_in_name(table.name_by_pid.get(pid, ""))
        if rank is None:
            rank = rank_in_name(pid)
        if rank is None and rank_votes[pid]:
            rank = rank_votes[pid].most_common(1)[0][0]
        if rank is not None:
            rank_by_pid[pid] = rank
    return rank_by_pid


def _find_owners(table: EventTable, events: pl.DataFrame, pids: Sequence[str]) -> pl.Series:
    """Return the process of each event, one of `pids`; null for events of other processes.

    Kernels belong to the process in whose section of the file they are; where sections overlap, the
    first device is that of the first of `pids`.
    """
    events = events.with_row_index("row")
    owned_events = events.filter(pl.col("pid").is_in(pids))
    owners = pl.Series("owner", [None], dtype=pl.String).new_from_index(0, events.height)
    owners = owners.scatter(owned_events["row"], owned_events["pid"])
    device_events = events.filter(_IS_ON_DEVICE, ~pl.col("pid").is_in(pids))
    if device_events.is_empty():
        return owners
    launches = owned_events.filter(pl.col("category") == "runtime").drop_nulls("correlation")
    launches = launches.select("correlation", launched_ns="start_ns", owner="pid")
    row = pl.col("row")
    sections = owned_events.group_by("pid").agg(first_row=row.min(), last_row=row.max())
    sections = sections.sort("first_row")
    is_before_next = sections["last_row"] < sections["first_row"].shift(-1)
    if is_before_next.all():  # files of processes were joined one after the other
        rows = device_events["row"].to_numpy()
        section_index = np.searchsorted(sections["first_row"].to_numpy(), rows, "right") - 1
        section_pids = sections["pid"].gather(np.maximum(section_index, 0))
        device_events = device_events.with_columns(owner=section_pids)
    else:
        devices = device_events["device"].drop_nulls().unique().sort().to_list()
        pid_by_device = dict(zip(devices, pids, strict=False)) if len(devices) == len(pids) else {}
        owner = pl.col("device").replace_strict(pid_by_device, default=None, return_dtype=pl.String)
        device_events = device_events.with_columns(owner=owner)
    _check_owners(table, device_events, launches)
    return owners.scatter(device_events["row"], device_events["owner"])


def _check_owners(table: EventTable, device_events: pl.DataFrame, launches: pl.DataFrame) -> None:
    """Refuse kernels whose `owner` did not launch them, or that overlap others of their stream."""
    correlated_events = device_events.drop_nulls("correlation")
    events_and_launches = correlated_events.join(launches, on=["correlation", "owner"])
    is_after_launch = pl.col("launched_ns") <= pl.col("start_ns")
    launched_count = events_and_launches.filter(is_after_launch)["row"].n_unique()
    kernels = device_events.filter(pl.col("category") == "kernel").sort("start_ns")
    end_ns = pl.col("start_ns") + pl.col("duration_ns")
    previous_end_ns = end_ns.shift(1).over("owner", *_STREAM_KEY)
    is_overlapping = kernels.select(pl.col("start_ns") < previous_end_ns).to_series()
    overlapping_share = is_overlapping.mean() or 0.0
    if (
        launched_count < MIN_SHARE_LAUNCHED * correlated_events.height
        or float(overlapping_share) > MAX_SHARE_OVERLAPPING  # type: ignore[arg-type]
    ):
        raise UnusableInput(
            f"'{table.path.name}' holds profiles of several processes, and its kernels do not say of "
            "which one they are: give the file of each rank instead."
        )


def _rank_by_device(tables: Sequence[EventTable]) -> None:
    """Take the device of each process as its rank (`stated_rank`), where each has one of its own."""
    device_columns = [table.rows.filter(_IS_ON_DEVICE)["device"].drop_nulls() for table in tables]
    devices_of_tables = [devices.unique().to_list() for devices in device_columns]
    distinct_devices = {device for devices in devices_of_tables for device in devices}
    have_one_device = all(len(devices) == 1 for devices in devices_of_tables)
    if have_one_device and len(distinct_devices) == len(tables):
        for table, (device,) in zip(tables, devices_of_tables, strict=True):
            table.stated_rank, table.is_rank_of_device = device, True
