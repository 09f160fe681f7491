"""The messages of an XPlane file, as protobuf's own library reads them.

Source: tsl/profiler/protobuf/xplane.proto of OpenXLA. Fields that are not needed here are not declared:
the library skips them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import MissingExtra, NotATrace

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["parsed", "space"]

_PACKAGE: Final = "tracelens.xplane"
_INT, _UINT, _DOUBLE, _STRING, _BYTES = "INT64", "UINT64", "DOUBLE", "STRING", "BYTES"
# Message: field: (number, type, repeated). A type that is none of protobuf's own is a message's.
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str, bool]]]] = {
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
    try:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra.naming("Reading an XPlane file", "xplane") from error
    try:
        return space().FromString(content)
    except DecodeError as error:
        raise NotATrace("it is no whole XPlane file") from error


@cache
def space() -> Any:
    """Return the class of the outermost message."""
    from google.protobuf import (  # noqa: PLC0415 - an extra
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in _MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Space"))
