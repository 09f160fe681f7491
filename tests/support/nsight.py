"""Databases as Nsight Systems exports them, of what a test says that ranks did."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MS: Final = 1_000_000
BEGIN: Final = 1_700_000_000_000_000_000
_TABLES: Final = """
create table StringIds (id integer primary key, value text);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer);
create table TARGET_INFO_SYSTEM_ENV (name text, value text);
create table PROCESSES (globalPid integer, pid integer, name text);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer,
    streamId integer, correlationId integer, globalPid integer, shortName integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer,
    correlationId integer, globalPid integer, bytes integer, copyKind integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer,
    correlationId integer, nameId integer);
create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, textId integer,
    globalTid integer);
create table MPI_RANKS (globalPid integer, rank integer);
create table MPI_COLLECTIVES_EVENTS (start integer, end integer, globalTid integer, textId integer,
    size integer);
create table MPI_P2P_EVENTS (start integer, end integer, globalTid integer, textId integer,
    remoteRank integer, size integer);
"""


@dataclass
class Export:
    """A file to write: kernels (begin, end, name, stream, when launched), ranges (begin, end, name)."""

    rank: int | None = 0
    pid: int = 77
    host: str = "node0"
    kernels: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    collectives: list[tuple[int, int, str, int]] = field(default_factory=list)
    messages: list[tuple[int, int, str, int, int]] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        """Write it."""
        texts: dict[str, int] = {}
        process = self.pid << 24
        thread = process | 5

        def text(name: str) -> int:
            return texts.setdefault(name, len(texts) + 1)

        connection = sqlite3.connect(path)
        connection.executescript(_TABLES)
        insert = connection.executemany
        insert("insert into TARGET_INFO_SESSION_START_TIME values (?)", [(BEGIN,)])
        insert("insert into TARGET_INFO_SYSTEM_ENV values (?, ?)", [("Hostname", self.host)])
        insert("insert into PROCESSES values (?, ?, ?)", [(process, self.pid, "train")])
        for number, (start, end, name, stream, launched) in enumerate(self.kernels, 1):
            row = (start, end, 0, stream, number, process, text(name))
            insert("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?)", [row])
            call = (launched, launched + 5_000, thread, number, text("cudaLaunchKernel"))
            insert("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)", [call])
        ranges = [(start, end, 59, name, None, thread) for start, end, name in self.ranges]
        insert("insert into NVTX_EVENTS values (?, ?, ?, ?, ?, ?)", ranges)
        if self.rank is not None:
            insert("insert into MPI_RANKS values (?, ?)", [(process, self.rank)])
        calls = [(s, e, thread, text(name), size) for s, e, name, size in self.collectives]
        insert("insert into MPI_COLLECTIVES_EVENTS values (?, ?, ?, ?, ?)", calls)
        sent = [(s, e, thread, text(name), peer, size) for s, e, name, peer, size in self.messages]
        insert("insert into MPI_P2P_EVENTS values (?, ?, ?, ?, ?, ?)", sent)
        insert("insert into StringIds values (?, ?)", [(n, name) for name, n in texts.items()])
        connection.commit()
        connection.close()
        return path


def training(rank: int, steps: int = 40, slow: float = 1.0) -> Export:
    """Return a rank of a training: forward and backward on its device, `slow` times as long, NCCL."""
    export = Export(rank=rank, pid=100 + rank)
    for step in range(steps):
        at_ns = step * 30 * MS + rank * 1000
        computed = at_ns + round((6 + 10) * MS * slow) + step * 100
        forward = at_ns + round(6 * MS * slow)
        reduced = step * 30 * MS + 26 * MS
        export.ranges += [
            (at_ns, reduced + MS, f"step {step}"),
            (at_ns + 1000, at_ns + 2 * MS, "forward"),
            (at_ns + 2 * MS, at_ns + 4 * MS, "backward"),
        ]
        export.kernels += [
            (at_ns + 10_000, forward, "sm80_gemm", 7, at_ns + 5_000),
            (forward, computed, "sm80_gemm_back", 7, at_ns + 3 * MS),
            (computed, reduced, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 16, at_ns + 3 * MS + 10),
        ]
    return export
