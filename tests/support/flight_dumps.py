"""Dumps of PyTorch's Flight Recorder, as `torch/csrc/distributed/c10d/FlightRecorder.hpp` has them."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BEGIN: Final = 1_795_000_000_000_000_000
OPEN: Final[dict[str, Any]] = {
    "state": "scheduled",
    "retired": False,
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
}
WORLD: Final = ("0", "default_pg")


def call(seq: int, name: str = "nccl:all_reduce", size: int = 1024, **facts: Any) -> dict[str, Any]:
    """Return an entry of a call that is over; `facts` replace what it says."""
    frames = [{"name": "train", "filename": "/home/me/train.py", "line": 12}]
    return {
        "frames": frames,
        "process_group": WORLD,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": name,
        "time_created_ns": BEGIN + seq * 10_000_000,
        "time_discovered_started_ns": BEGIN + seq * 10_000_000 + 1000,
        "time_discovered_completed_ns": BEGIN + seq * 10_000_000 + 5_000_000,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
    } | facts


def unfinished_entry(
    seq: int, name: str = "nccl:all_reduce", size: int = 1024, **facts: Any
) -> dict[str, Any]:
    """Return an entry of a call that has not ended."""
    return call(seq, name, size, **OPEN | facts)


def dump(
    entries: Sequence[Any], world: int = 4, groups: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Return what a rank dumps: its entries, and the ranks of its groups beside that of all."""
    ranks_of = {"0": range(world), **(groups or {})}
    config = {
        name: {
            "name": name,
            "desc": "default_pg" if name == "0" else "undefined",
            "ranks": str([*ranks]),
        }
        for name, ranks in ranks_of.items()
    }
    numbered = [
        {**entry, "record_id": place} if isinstance(entry, dict) else entry
        for place, entry in enumerate(entries)
    ]
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": numbered}


def write_dumps(
    folder: Path,
    ranks: Sequence[Sequence[Any] | None],
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Write the entries of each rank as PyTorch names and pickles them; None = no dump of it."""
    for rank, entries in enumerate(ranks):
        if entries is not None:
            mine = {name: members for name, members in (groups or {}).items() if rank in members}
            content = pickle.dumps(dump(entries, len(ranks), mine))
            (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return folder


def write_as_json(folder: Path, ranks: Sequence[Sequence[Any]]) -> Path:
    """Write dumps as JSON: times that are not known are 0, and without entries there is no such key."""
    for rank, entries in enumerate(ranks):
        value = dump(entries, len(ranks))
        value["entries"] = [
            {key: 0 if known is None else known for key, known in entry.items() if key != "frames"}
            for entry in entries
        ]
        if not entries:
            del value["entries"]
        (folder / f"rank_{rank}.json").write_text(json.dumps(value, sort_keys=True))
    return folder
