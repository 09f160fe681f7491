"""The packets of a Perfetto trace: a file is a list of them, each with its length in front.

Packets may be compressed by zlib, and the file by gzip. Of their messages those are declared that track
events need. Texts are bytes here, which need not be UTF-8.

Source: protos/perfetto/trace of Perfetto.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracelens.conversion.layout import GrowthLimit
from tracelens.errors import NotATrace
from tracelens.readers.protobuf import (
    FIXED_BYTES,
    LENGTH,
    VARINT,
    build_classes,
    read_varint,
    refuse_damage,
)
from tracelens.schema.gate import read_beginning, read_contents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.readers.protobuf import Fields

_INT, _UINT, _SMALL, _BYTES, _BOOL = "INT64", "UINT64", "UINT32", "BYTES", "BOOL"
_MESSAGES: Final[dict[str, Fields]] = {
    "Named": {"iid": (1, _UINT, False), "name": (2, _BYTES, False)},
    "Interned": {"categories": (1, "Named", True), "names": (2, "Named", True)},
    "Process": {"pid": (1, "INT32", False), "process_name": (6, _BYTES, False)},
    "Thread": {
        "pid": (1, "INT32", False), "tid": (2, _INT, False), "thread_name": (5, _BYTES, False),
    },
    "Track": {
        "uuid": (1, _UINT, False), "name": (2, _BYTES, False), "process": (3, "Process", False),
        "thread": (4, "Thread", False), "parent_uuid": (5, _UINT, False),
        "counter": (8, _BYTES, False), "static_name": (10, _BYTES, False),
    },
    "Legacy": {
        "name_iid": (1, _UINT, False), "phase": (2, "INT32", False),
        "duration_us": (3, _INT, False),
    },
    "Event": {
        "timestamp_delta_us": (1, _INT, False), "category_iids": (3, _UINT, True),
        "legacy_event": (6, "Legacy", False), "type": (9, "INT32", False),
        "name_iid": (10, _UINT, False), "track_uuid": (11, _UINT, False),
        "timestamp_absolute_us": (16, _INT, False), "categories": (22, _BYTES, True),
        "name": (23, _BYTES, False),
    },
    "EventDefaults": {"track_uuid": (11, _UINT, False)},
    "Defaults": {
        "track_event": (11, "EventDefaults", False), "timestamp_clock_id": (58, _SMALL, False),
    },
    "Clock": {
        "clock_id": (1, _SMALL, False), "timestamp": (2, _UINT, False),
        "is_incremental": (3, _BOOL, False), "unit_multiplier_ns": (4, _UINT, False),
    },
    "Clocks": {"clocks": (1, "Clock", True), "primary": (2, "INT32", False)},
    "Packet": {
        "clock_snapshot": (6, "Clocks", False), "timestamp": (8, _UINT, False),
        "sequence": (10, _SMALL, False), "track_event": (11, "Event", False),
        "interned": (12, "Interned", False), "sequence_flags": (13, _SMALL, False),
        "incremental_state_cleared": (41, _BOOL, False),
        "previous_packet_dropped": (42, _BOOL, False), "thread": (44, "Thread", False),
        "compressed": (50, _BYTES, False), "timestamp_clock_id": (58, _SMALL, False),
        "defaults": (59, "Defaults", False), "track": (60, "Track", False),
    },
    "Trace": {"packets": (1, "Packet", True)},
}  # fmt: skip


@cache
def messages() -> dict[str, Any]:
    """Return the classes of all messages by name.

    Raises:
        MissingExtra: protobuf's library is not installed.
    """
    return build_classes("perfetto", _MESSAGES)


def parse_packet(content: bytes) -> Any:
    """Return a packet; NotATrace is raised if it is something else."""
    packet = messages()["Packet"]
    with refuse_damage("packet of Perfetto"):
        return packet.FromString(content)


_TAG: Final = 0x0A  # field 1, with a length
_GZIP: Final = b"\x1f\x8b"
_BEGIN_BYTES: Final = 1 << 12
_FIELDS_OF_PACKETS: Final = frozenset(
    {6, 8, 10, 11, 12, 13, 33, 35, 36, 41, 42, 43, 44, 50, 58, 59, 60}
)


def is_perfetto(path: Path) -> bool:
    """Return True if a file begins with packets."""
    content = read_beginning(path, _BEGIN_BYTES)
    if content.startswith(_GZIP):
        try:
            content = zlib.decompressobj(wbits=31).decompress(content, _BEGIN_BYTES)
        except zlib.error:
            return False
    position = packet_count = 0
    while position < len(content):
        packet_bytes, packet_begin = read_varint(content, position + 1)
        if content[position] != _TAG or packet_bytes is None:
            return False
        position = packet_begin + packet_bytes
        if not _may_be_packet(content[packet_begin:position], is_whole=position <= len(content)):
            return False
        packet_count += 1
    return packet_count > 0


def _may_be_packet(content: bytes, *, is_whole: bool) -> bool:
    """Return True if bytes are fields and some are fields of packets; text hardly ever is.

    `is_whole`: the bytes are not cut off, so the last field must end with them.
    """
    position, has_packet_field = 0, not content
    while position < len(content):
        tag, position = read_varint(content, position)
        if tag is None:
            return not is_whole and has_packet_field
        field_number, wire_type = tag >> 3, tag & 7
        has_packet_field = has_packet_field or field_number in _FIELDS_OF_PACKETS
        if wire_type == LENGTH:
            field_bytes, position = read_varint(content, position)
            position += field_bytes or 0
        elif wire_type == VARINT:
            _, position = read_varint(content, position)
        elif wire_type in FIXED_BYTES:
            position += FIXED_BYTES[wire_type]
        else:
            return False
    return has_packet_field and (position == len(content) or not is_whole)


@dataclass(eq=False)
class Packets:
    """The packets of a file."""

    path: Path
    lost_count: int = 0  # packets that cannot be parsed
    is_cut: bool = False  # the file ends within a packet
    damage_reason: str = ""

    def __iter__(self) -> Iterator[Any]:
        """Yield the packets of a file, those within compressed ones in their place.

        Raises:
            NotATrace: it is no regular file, or larger than it may be.
        """
        content = read_contents(self.path)
        growth = GrowthLimit(len(content))
        if content.startswith(_GZIP):
            content = self._decompress(content, growth, wbits=31)
        yield from self._split_packets(content, growth)

    def _split_packets(
        self, content: bytes, growth: GrowthLimit, *, was_compressed: bool = False
    ) -> Iterator[Any]:
        """Yield the packets in a content; `was_compressed`: a packet held it."""
        position = 0
        while position < len(content):
            packet_bytes, packet_begin = read_varint(content, position + 1)
            packet_end = packet_begin + (packet_bytes or 0)
            if content[position] != _TAG or packet_bytes is None or packet_end > len(content):
                self.is_cut = True
                self._note_damage("no packet begins there, or it ends within one")
                return
            position = packet_end
            try:
                packet = parse_packet(content[packet_begin:packet_end])
            except NotATrace as error:
                self.lost_count += 1
                self._note_damage(str(error))
                continue
            if packet.compressed and was_compressed:
                self.lost_count += 1
                self._note_damage("a compressed packet holds another one")
            elif packet.compressed:
                inner_content = self._decompress(packet.compressed, growth)
                yield from self._split_packets(inner_content, growth, was_compressed=True)
            else:
                yield packet

    def _note_damage(self, reason: str) -> None:
        self.damage_reason = self.damage_reason or reason

    def _decompress(
        self, compressed: bytes, growth: GrowthLimit, wbits: int = zlib.MAX_WBITS
    ) -> bytes:
        """Decompress bytes by zlib, up to where they break off."""
        decompressor = zlib.decompressobj(wbits=wbits)
        chunks = []
        try:
            while compressed and not decompressor.eof:
                chunk = decompressor.decompress(compressed, _BEGIN_BYTES << 8)
                growth.count_bytes(len(chunk))
                chunks.append(chunk)
                compressed = decompressor.unconsumed_tail
        except zlib.error as error:
            self._note_damage(f"it cannot be decompressed to its end ({error})")
        if not decompressor.eof:
            self.is_cut = True
            self._note_damage("it cannot be decompressed to its end")
        return b"".join(chunks)
