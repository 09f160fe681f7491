"""The messages of an XPlane file, as protobuf's own library reads them.

Source: tsl/profiler/protobuf/xplane.proto of OpenXLA. Fields that are not needed here are not declared:
the library skips them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracelens.readers.protobuf import classes, whole

if TYPE_CHECKING:
    from tracelens.readers.protobuf import Fields

__all__ = ["parsed", "space"]

_INT, _UINT, _DOUBLE, _STRING, _BYTES = "INT64", "UINT64", "DOUBLE", "STRING", "BYTES"
_MESSAGES: Final[dict[str, Fields]] = {
    "Stat": {
        "metadata_id": (1, _INT, False),
        "double_value": (2, _DOUBLE, False),
        "uint64_value": (3, _UINT, False),
        "int64_value": (4, _INT, False),
        "str_value": (5, _STRING, False),
        "ref_value": (7, _UINT, False),
    },
    "Event": {
        "metadata_id": (1, _INT, False),
        "offset_ps": (2, _INT, False),
        "duration_ps": (3, _INT, False),
        "stats": (4, "Stat", True),
        "num_occurrences": (5, _INT, False),
    },
    "Line": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "timestamp_ns": (3, _INT, False),
        "events": (4, "Event", True),
        "display_name": (11, _STRING, False),
    },
    "Named": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "display_name": (4, _STRING, False),
    },
    "Entry": {"key": (1, _INT, False), "value": (2, "Named", False)},  # of a map
    "Plane": {
        "id": (1, _INT, False),
        "name": (2, _STRING, False),
        "lines": (3, "Line", True),
        "event_metadata": (4, "Entry", True),
        "stat_metadata": (5, "Entry", True),
        "stats": (6, "Stat", True),
    },
    "Space": {
        "planes": (1, "Plane", True),
        "errors": (2, _STRING, True),
        "warnings": (3, _STRING, True),
        "hostnames": (4, _STRING, True),
    },
}


def parsed(content: bytes) -> Any:
    """Return the outermost message of a file's content.

    Raises:
        NotATrace: it is none.
        MissingExtra: protobuf's library is not installed.
    """
    space_of = space()
    with whole("XPlane file"):
        return space_of.FromString(content)


@cache
def space() -> Any:
    """Return the class of the outermost message."""
    return classes("xplane", _MESSAGES)["Space"]
