"""Segments folders made by hand, byte by byte as docs/format.md says, without the recorder."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens.schema.record import (
    BYTE_ORDER,
    HEADER,
    MAGIC,
    NO_BYTES,
    NO_INDEX,
    NO_REQUEST,
    NO_SEQ,
    NO_SHORT,
    RECORD,
    RECORD_BYTES,
)
from tracelens.schema.side import END_LINE, Definition, Process, Thread, format_line
from tracelens.schema.vocabulary import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROCESS = Process(rank=3, world=4, pid=os.getpid(), host="h", clock_domain="c", incarnation=1)


@dataclass(frozen=True)
class Slot:
    """One record; the defaults are a span of definition 1 without any value."""

    start_ns: int = 0
    end_ns: int = 0
    nbytes: int = NO_BYTES
    request: int = NO_REQUEST
    seq: int = NO_SEQ
    step: int = -1
    key: int = NO_INDEX
    bucket: int = NO_INDEX
    peer: int = NO_INDEX
    thread: int = 0
    micro_step: int = NO_SHORT
    queue_depth: int = NO_SHORT
    flags: int = 0
    definition: int = 1

    def pack(self) -> bytes:
        return RECORD.pack(*(getattr(self, name) for name in self.__dataclass_fields__))


def header(
    magic: bytes = MAGIC,
    order: int = BYTE_ORDER,
    version: int = SCHEMA_VERSION,
    record_bytes: int = RECORD_BYTES,
) -> bytes:
    return HEADER.pack(magic, order, version, record_bytes, 100, PROCESS.pid)


def write_folder(
    folder: Path,
    *segments: Sequence[Slot],
    definitions: Sequence[Definition] = (Definition(1, "piece", "user"),),
    process: Process = PROCESS,
    end: bool = True,
) -> Path:
    """Write a segments folder; unused slots at the end of each segment as in a real one."""
    path = folder / f"worker-{process.rank:05d}-77.segments"
    path.mkdir(parents=True)
    lines = [
        format_line("process", process),
        *(format_line("definitions", row) for row in definitions),
        format_line("threads", Thread(0, "MainThread")),
        *([END_LINE] if end else []),
    ]
    (path / "side.jsonl").write_bytes(b"".join(lines))
    for number, slots in enumerate(segments):
        content = header() + b"".join(slot.pack() for slot in slots) + bytes(3 * RECORD_BYTES)
        (path / f"{number:06d}.seg").write_bytes(content)
    return path


def newer(process: Process = PROCESS) -> Process:
    return replace(process, schema=SCHEMA_VERSION + 1)
