"""Changes of protobuf's files (XPlane, Perfetto): of fields, of how many messages, or of any bytes."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any, Final

from support.fuzz.changes import NUMBERS, damaged
from support.fuzz.values import TEXTS

from tracelens.readers.perfetto.packets import messages
from tracelens.readers.xplane import space

if TYPE_CHECKING:
    import random

__all__ = ["changed_packets", "changed_profile"]

_BYTES: Final = 0.4
_DEEPER: Final = 0.8
_WORDS: Final = tuple(text for text in TEXTS if text.isascii() or text.isprintable())


def changed_profile(base: bytes, luck: random.Random) -> bytes:
    """Change an XPlane file."""
    return _change_messages(base, space(), luck)


def changed_packets(base: bytes, luck: random.Random) -> bytes:
    """Change a trace of Perfetto, which may be compressed, or packets of it."""
    changed = _change_messages(base, messages()["Trace"], luck)
    kind = luck.random()
    if kind < 0.8:
        return changed
    if kind < 0.9:
        packed = zlib.compress(damaged(changed, luck, 1) if luck.random() < 0.5 else changed, 1)
        around = messages()["Trace"]()
        around.packets.add(compressed=damaged(packed, luck, 1) if luck.random() < 0.5 else packed)
        written: bytes = around.SerializeToString()
        return written
    packed = gzip.compress(changed, 1, mtime=0)
    return damaged(packed, luck) if luck.random() < 0.5 else packed


def _change_messages(base: bytes, message: Any, luck: random.Random) -> bytes:
    """Change some messages and write them anew, or change any bytes."""
    if luck.random() < _BYTES:
        return damaged(base, luck)
    content = message.FromString(base)
    for _ in range(luck.randint(1, 4)):
        _change(content, luck)
    written: bytes = content.SerializeToString()
    return damaged(written, luck, 1) if luck.random() < 0.2 else written


def _change(message: Any, luck: random.Random) -> None:
    """Change a field of a message, or of one in it."""
    fields = list(message.DESCRIPTOR.fields)
    inner = [field for field in fields if field.message_type and getattr(message, field.name)]
    if inner and luck.random() < _DEEPER:
        chosen = getattr(message, luck.choice(inner).name)
        _change(luck.choice(chosen) if hasattr(chosen, "add") else chosen, luck)
        return
    field = luck.choice(fields)
    if field.message_type:
        _change_number(getattr(message, field.name), luck)
    elif hasattr(getattr(message, field.name), "append"):
        getattr(message, field.name).append(_value(field, 0, luck))
    else:
        _set(message, field, luck)


def _change_number(messages: Any, luck: random.Random) -> None:
    """Leave one out, repeat one, or add one that is empty."""
    if not hasattr(messages, "add"):
        messages.Clear()
    elif messages and luck.random() < 0.4:
        del messages[luck.randrange(len(messages))]
    elif messages and luck.random() < 0.6:
        messages.add().CopyFrom(luck.choice(messages))
    else:
        messages.add()


def _set(message: Any, field: Any, luck: random.Random) -> None:
    """Give a field a value of its type that is rarely right."""
    setattr(message, field.name, _value(field, getattr(message, field.name), luck))


def _value(field: Any, old: Any, luck: random.Random) -> Any:
    if field.type == field.TYPE_BYTES:
        return luck.choice(_WORDS).encode("utf-8", "surrogatepass")
    if field.cpp_type == field.CPPTYPE_STRING:
        return luck.choice(_WORDS)
    if field.cpp_type == field.CPPTYPE_DOUBLE:
        return luck.choice((float("nan"), float("inf"), -1e300, 0.5))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return luck.random() < 0.5
    lowest, upper_bound = {
        field.CPPTYPE_UINT64: (0, 2**64),
        field.CPPTYPE_UINT32: (0, 2**32),
        field.CPPTYPE_INT32: (-(2**31), 2**31),
    }.get(field.cpp_type, (-(2**63), 2**63))
    number = luck.choice((*NUMBERS, old + 1, old - 1, -old, old * 1000))
    return min(max(number, lowest), upper_bound - 1)
