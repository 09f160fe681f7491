"""Writes Perfetto's protobuf traces: processes with threads, and slices on them."""

from __future__ import annotations

from typing import Any, Final

from tracelens.readers.perfetto.packets import messages

BEGIN, END, INSTANT = 1, 2, 3
STEP_MS: Final = 40
_MS: Final = 1_000_000
BOOT_NS: Final = 10**12
REAL_NS: Final = 1_760_000_000 * 10**9


class PerfettoFile:
    """A trace, to which processes and events are added."""

    def __init__(self) -> None:
        self.content = messages()["Trace"]()

    def packet(self, **fields: Any) -> Any:
        """Add a packet."""
        return self.content.packets.add(**fields)

    def clocks(self, *clocks: tuple[int, int], sequence: int = 0, incremental: int = 0) -> None:
        """Add a snapshot of clocks: number and reading."""
        snapshot = self.packet(sequence=sequence).clock_snapshot
        for number, reading in clocks:
            snapshot.clocks.add(
                clock_id=number, timestamp=reading, is_incremental=number == incremental
            )

    def process(self, pid: int, name: str, thread: str = "main") -> int:
        """Add a process with one thread; return the number of that thread's track."""
        process = self.packet().track
        process.uuid, process.process.pid, process.process.process_name = pid, pid, name.encode()
        track = self.packet().track
        track.uuid, track.parent_uuid = pid + 10_000, pid
        track.thread.pid, track.thread.tid = pid, pid
        track.thread.thread_name = thread.encode()
        return pid + 10_000

    def event(self, track: int, kind: int, at_ns: int, name: str = "", category: str = "") -> None:
        """Add an event at a time of the trace's clock."""
        event = self.packet(timestamp=at_ns).track_event
        event.type, event.track_uuid, event.name = kind, track, name.encode()
        if category:
            event.categories.append(category.encode())

    def slice(self, track: int, begin_ns: int, end_ns: int, name: str, category: str = "") -> None:
        """Add a slice without others in it."""
        self.event(track, BEGIN, begin_ns, name, category)
        self.event(track, END, end_ns)

    def written(self) -> bytes:
        """Return the file."""
        content: bytes = self.content.SerializeToString()
        return content


def training(
    ranks: int = 3, steps: int = 40, *, late: int | None = None, name: str = "rank {}"
) -> PerfettoFile:
    """Return a trace of a training, of which one rank may be 9 ms late in each step."""
    file = PerfettoFile()
    file.clocks((6, BOOT_NS), (1, REAL_NS))
    for rank in range(ranks):
        track = file.process(100 + rank, name.format(rank))
        slow = 9 * _MS * (rank == late)
        for step in range(steps):
            begin_ns = BOOT_NS + step * STEP_MS * _MS
            file.event(track, BEGIN, begin_ns, f"step {step}")
            file.slice(track, begin_ns + 10, begin_ns + 8 * _MS, "forward")
            file.slice(track, begin_ns + 8 * _MS, begin_ns + 18 * _MS + slow, "backward")
            at = begin_ns + 18 * _MS + slow + 10
            file.slice(track, at, begin_ns + 34 * _MS, "ncclAllReduce", "nccl")
            file.slice(track, begin_ns + 34 * _MS + 10, begin_ns + 38 * _MS, "optimizer")
            file.event(track, END, begin_ns + 39 * _MS)
    return file
