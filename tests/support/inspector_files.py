"""Writes logs as NCCL's Inspector plugin does, of ranks that reduce gradients."""

from __future__ import annotations

import json
from typing import Any, Final

BEGIN_US: Final = 1_795_000_000_000_000
STEP_US: Final = 40_000
WORLD: Final = "0x7f8c496ae9f661"
_BYTES: Final = 1 << 26


def record(
    rank: int,
    name: str,
    number: int,
    begin_us: int,
    end_us: int,
    *,
    group: str = WORLD,
    ranks: int = 4,
    called: str = "unknown",
    verbose: bool = True,
    peer: int | None = None,
    process: int | None = None,
    written_us: int | None = None,
) -> dict[str, Any]:
    """Return one record, in the order of the plugin's keys."""
    side = "coll" if peer is None else "p2p"
    took_us = end_us - begin_us
    call: dict[str, Any] = {side: name}
    if peer is None:
        call |= {"coll_algo": "RING", "coll_proto": "SIMPLE"}
    call |= {f"{side}_sn": number} | ({} if peer is None else {"p2p_peer": peer})
    call |= {
        f"{side}_msg_size_bytes": _BYTES,
        f"{side}_exec_time_us": took_us,
        f"{side}_timing_source": "kernel_gpu",
        f"{side}_algobw_gbs": _BYTES / took_us / 1_000,
        f"{side}_busbw_gbs": 1.5 * _BYTES / took_us / 1_000,
    }
    if verbose:
        channels = [
            {"channel_id": c, "kernel_start_ts": begin_us + c, "kernel_stop_ts": end_us - 1 + c,
             "kernel_record_ts": end_us}
            for c in range(2)
        ]  # fmt: skip
        times = {f"{side}_start_ts": begin_us - 50, f"{side}_stop_ts": begin_us - 45}
        call["event_trace_ts"] = times | {"kernel_events": channels}
    process = rank if process is None else process
    return {
        "header": {"id": group, "comm_name": called, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.4",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": end_us + 500 if written_us is None else written_us,
            "hostname": f"node{process // 2}",
            "pid": 1000 + process,
        },
        f"{side}_perf": call,
    }


def training(
    rank: int, steps: int = 40, *, late: int | None = None, verbose: bool = True, ranks: int = 4
) -> list[dict[str, Any]]:
    """Return the records of a rank: two operations a step, in which others wait for the late one."""
    records = []
    for step in range(steps):
        at_us = BEGIN_US + step * STEP_US
        slow = 9_000 * (rank == late)
        ended = at_us + 30_000
        for name, call_us in (
            ("ReduceScatter", at_us + 18_000 + slow),
            ("AllGather", at_us + 31_000),
        ):
            records.append(
                record(
                    rank,
                    name,
                    step,
                    call_us,
                    max(ended, call_us + 4_000),
                    verbose=verbose,
                    ranks=ranks,
                )
            )
    return records


def stats(rank: int, dropped: int) -> dict[str, Any]:
    """Return what a dump says of itself."""
    base = record(rank, "AllReduce", 0, BEGIN_US, BEGIN_US + 1)
    counts = {"coll_records": 5, "coll_dropped_total": dropped, "p2p_dropped_total": 0}
    return {"header": base["header"], "metadata": base["metadata"], "dump_stats": counts}


def lines(records: list[dict[str, Any]]) -> bytes:
    """Return a file."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in records)
