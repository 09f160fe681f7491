"""Changes of XPlane files: of fields of their messages, of how many there are, or of any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from support.fuzz.changes import NUMBERS, damaged
from support.fuzz.values import TEXTS

from tracelens.readers.xplane.messages import space

if TYPE_CHECKING:
    import random

__all__ = ["changed_profile"]

_BYTES: Final = 0.4
_DEEPER: Final = 0.8
_WORDS: Final = tuple(text for text in TEXTS if text.isascii() or text.isprintable())


def changed_profile(base: bytes, luck: random.Random) -> bytes:
    """Change some messages and write them anew, or change any bytes."""
    if luck.random() < _BYTES:
        return damaged(base, luck)
    content = space().FromString(base)
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
        getattr(message, field.name).append(luck.choice(_WORDS))
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
    if field.cpp_type == field.CPPTYPE_STRING:
        setattr(message, field.name, luck.choice(_WORDS))
    elif field.cpp_type == field.CPPTYPE_DOUBLE:
        setattr(message, field.name, luck.choice((float("nan"), float("inf"), -1e300, 0.5)))
    else:
        least, most = (0, 2**64) if field.cpp_type == field.CPPTYPE_UINT64 else (-(2**63), 2**63)
        old = getattr(message, field.name)
        number = luck.choice((*NUMBERS, old + 1, old - 1, -old, old * 1000))
        setattr(message, field.name, min(max(number, least), most - 1))
