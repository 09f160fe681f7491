"""Perfetto: its Python package has a writer of packets that the caller fills in."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING

from benchmarks.recorders.arm import Arm, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Perfetto"]

FILE = "trace.pftrace"
BUILDER = "perfetto.trace_builder.proto_builder"
MESSAGES = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
BEGIN, END = 1, 2  # TrackEvent.Type
TRACK, SEQUENCE = 7, 1


class Perfetto(Recorder):
    """A packet where a span begins and one where it ends, in a buffered file."""

    name = "perfetto"
    distribution = "perfetto"
    start = (
        f"from {BUILDER} import StreamingTraceProtoBuilder\n"
        "StreamingTraceProtoBuilder(open({folder!r} + '/trace.pftrace', 'wb'))"
    )

    def __init__(self, folder: Path) -> None:
        builder = importlib.import_module(BUILDER).StreamingTraceProtoBuilder
        self._file = (folder / FILE).open("wb")
        self._builder = builder(self._file)

    def arms(self) -> Sequence[Arm]:
        return (Arm("builder.create_packet() ... write_packet(), twice", self._packets),)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def count_kept(folder: Path) -> int:
        packet_of = importlib.import_module(MESSAGES).TracePacket
        packets = _packets((folder / FILE).read_bytes())
        return sum(packet_of.FromString(part).track_event.type == END for part in packets)

    def _packets(self, count: int) -> None:
        clock = time.perf_counter_ns
        create, write = self._builder.create_packet, self._builder.write_packet
        for number in range(count):
            packet = create()
            packet.timestamp = clock()
            packet.trusted_packet_sequence_id = SEQUENCE
            event = packet.track_event
            event.type = BEGIN
            event.track_uuid = TRACK
            event.name = "piece"
            for name, value in (("step", number), ("bytes", 4096)):
                annotation = event.debug_annotations.add()
                annotation.name = name
                annotation.int_value = value
            write(packet)
            packet = create()
            packet.timestamp = clock()
            packet.trusted_packet_sequence_id = SEQUENCE
            packet.track_event.type = END
            packet.track_event.track_uuid = TRACK
            write(packet)


def _packets(content: bytes) -> Iterator[bytes]:
    """Split a file into its packets: a byte, the length in groups of 7 bits, and so many bytes."""
    at = 0
    while at < len(content):
        size = shift = 0
        for byte in content[at + 1 : at + 6]:
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += 1
        if len(content) >= at + size:
            yield content[at : at + size]
        at += size
