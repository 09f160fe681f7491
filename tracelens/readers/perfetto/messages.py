"""The messages of a Perfetto trace that track events need, as protobuf's own library reads them.

Source: protos/perfetto/trace of Perfetto. Texts are bytes here, as nobody promises that they are UTF-8.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracelens.readers.protobuf import classes, whole

if TYPE_CHECKING:
    from tracelens.readers.protobuf import Fields

__all__ = ["packet_class", "parsed"]

_INT, _UINT, _SMALL, _BYTES, _BOOL = "INT64", "UINT64", "UINT32", "BYTES", "BOOL"
_MESSAGES: Final[dict[str, Fields]] = {
    "Named": {"iid": (1, _UINT, False), "name": (2, _BYTES, False)},
    "Interned": {"categories": (1, "Named", True), "names": (2, "Named", True)},
    "Process": {"pid": (1, "INT32", False), "process_name": (6, _BYTES, False)},
    "Thread": {
        "pid": (1, "INT32", False),
        "tid": (2, _INT, False),
        "thread_name": (5, _BYTES, False),
    },
    "Track": {
        "uuid": (1, _UINT, False),
        "name": (2, _BYTES, False),
        "process": (3, "Process", False),
        "thread": (4, "Thread", False),
        "parent_uuid": (5, _UINT, False),
        "counter": (8, _BYTES, False),
        "static_name": (10, _BYTES, False),
    },
    "Legacy": {
        "name_iid": (1, _UINT, False),
        "phase": (2, "INT32", False),
        "duration_us": (3, _INT, False),
    },
    "Event": {
        "timestamp_delta_us": (1, _INT, False),
        "category_iids": (3, _UINT, True),
        "legacy_event": (6, "Legacy", False),
        "type": (9, "INT32", False),
        "name_iid": (10, _UINT, False),
        "track_uuid": (11, _UINT, False),
        "timestamp_absolute_us": (16, _INT, False),
        "categories": (22, _BYTES, True),
        "name": (23, _BYTES, False),
    },
    "EventDefaults": {"track_uuid": (11, _UINT, False)},
    "Defaults": {
        "track_event": (11, "EventDefaults", False),
        "timestamp_clock_id": (58, _SMALL, False),
    },
    "Clock": {
        "clock_id": (1, _SMALL, False),
        "timestamp": (2, _UINT, False),
        "is_incremental": (3, _BOOL, False),
        "unit_multiplier_ns": (4, _UINT, False),
    },
    "Clocks": {"clocks": (1, "Clock", True), "primary": (2, "INT32", False)},
    "Packet": {
        "clock_snapshot": (6, "Clocks", False),
        "timestamp": (8, _UINT, False),
        "sequence": (10, _SMALL, False),
        "track_event": (11, "Event", False),
        "interned": (12, "Interned", False),
        "sequence_flags": (13, _SMALL, False),
        "incremental_state_cleared": (41, _BOOL, False),
        "previous_packet_dropped": (42, _BOOL, False),
        "thread": (44, "Thread", False),
        "compressed": (50, _BYTES, False),
        "timestamp_clock_id": (58, _SMALL, False),
        "defaults": (59, "Defaults", False),
        "track": (60, "Track", False),
    },
}


@cache
def packet_class() -> Any:
    """Return the class of a packet.

    Raises:
        MissingExtra: protobuf's library is not installed.
    """
    return classes("perfetto", _MESSAGES)["Packet"]


def parsed(content: bytes) -> Any:
    """Return a packet.

    Raises:
        NotATrace: it is none.
    """
    with whole("packet of Perfetto"):
        return packet_class().FromString(content)
