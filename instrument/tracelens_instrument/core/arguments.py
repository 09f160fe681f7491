"""Arguments of the recorder: converted where safe, refused in one sentence, or left out of a record.

Texts and numbers come out as Python's own, for every class: a class of the user's may compare,
hash or print itself in any way, and fail at it. What does not fit into a record costs its value, not
the event.
"""

from __future__ import annotations

import operator
from pathlib import Path

from tracelens.errors import InvalidArgument
from tracelens.schema.record import NO_BYTES, NO_INDEX, NO_REQUEST, NO_SEQ, NO_SHORT, RECORD
from tracelens.schema.vocabulary import KINDS, OPS, ROLES
from tracelens_instrument.core.failures import reraise_if_handlers, short_repr

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Final

    from tracelens_instrument.core.state import OpenSegment

__all__ = [
    "any_text",
    "checked_kind",
    "fits_step",
    "index",
    "is_true",
    "one_of",
    "path",
    "role",
    "text",
    "text_or_empty",
    "write_what_fits",
]

_INTEGER_LIMIT: Final = 2**31
_I32: Final = (-(2**31), 2**31 - 1, NO_INDEX)
_U16: Final = (0, 2**16 - 1, NO_SHORT)
# For each field from `bytes` to `queue_depth`: lowest, highest, and what says "does not apply".
_RANGES: Final = (
    (-(2**63), 2**63 - 1, NO_BYTES),
    (0, 2**64 - 1, NO_REQUEST),
    (0, 2**32 - 1, NO_SEQ),
    _I32,  # step
    _I32,  # key
    _I32,  # bucket
    _I32,  # peer
    (0, 2**16 - 1, 0),  # thread
    _U16,  # micro_step
    _U16,  # queue_depth
)


def text(label: str, value: object) -> str:
    """Return a text as a plain `str`.

    Raises:
        InvalidArgument: the value is not one.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{label} is {short_repr(value)}, expected a text.")
    return str.__str__(value)


def any_text(value: object) -> str:
    """Return anything as a text, never raising; an object without a text is called by its class."""
    if type(value) is str:
        return value
    try:
        return str.__str__(value if isinstance(value, str) else str(value))
    except Exception as error:  # noqa: BLE001 - objects may fail to describe themselves
        reraise_if_handlers(error)
        return type(value).__name__


def checked_kind(kind: object, op: object) -> tuple[str, str | None]:
    """Return a kind and an operation that it has, checked.

    Raises:
        InvalidArgument: there is no such kind, or it has no such operation.
    """
    checked_name = one_of("kind", kind, KINDS)
    if op is None:
        return checked_name, None
    return checked_name, one_of(f"op of kind {checked_name!r}", op, OPS.get(checked_name, ()))


def role(value: object) -> str | None:
    """Return a role, checked, or None.

    Raises:
        InvalidArgument: there is no such role.
    """
    return None if value is None else one_of("role", value, ROLES)


def index(label: str, value: Any, lowest: int = 0) -> int | None:
    """Return None or an integer from `lowest`; integers of other libraries are converted.

    Raises:
        InvalidArgument: it is neither.
    """
    if value is None:
        return None
    try:
        number = int.__index__(operator.index(value))
    except Exception as error:  # noqa: BLE001 - a tensor or an array fails in its own way
        reraise_if_handlers(error)
        number = lowest - 1
    if not lowest <= number < _INTEGER_LIMIT:
        raise InvalidArgument(f"{label} is {short_repr(value)}, expected a number from {lowest}.")
    return number


def path(label: str, value: Any) -> Path | None:
    """Return None or the path as a text.

    Raises:
        InvalidArgument: it is neither.
    """
    try:
        return None if value is None else Path(_to_plain_text(value))
    except Exception as error:
        reraise_if_handlers(error)
        raise InvalidArgument(f"{label} is {short_repr(value)}, expected a path.") from error


def _to_plain_text(value: Any) -> Any:
    """Return a text of a class of the user's as one of Python's; anything else as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def is_true(value: Any) -> bool:
    """Return the truth of anything; an object that has none counts as true."""
    try:
        return bool(value)
    except Exception as error:  # noqa: BLE001 - an array of several values has no truth
        reraise_if_handlers(error)
        return True


def one_of(label: str, value: object, allowed_words: tuple[str, ...]) -> str:
    """Return `value` as a plain `str`, one of the allowed words; `label` names it in the error.

    Raises:
        InvalidArgument: the value is not among them.
    """
    text = text_or_empty(value)
    if text not in allowed_words:
        expected = f"one of {', '.join(allowed_words)}" if allowed_words else "none"
        raise InvalidArgument(f"{label} is {short_repr(value)}, expected {expected}.")
    return text


def text_or_empty(value: object) -> str:
    """Return a text as a plain `str`, anything else as an empty one."""
    return str.__str__(value) if isinstance(value, str) else ""


def write_what_fits(
    segment: OpenSegment, offset: int, start_ns: int, values: tuple[Any, ...], definition_id: int
) -> None:
    """Write a record at byte `offset`, from `start_ns` of the monotonic clock, with end and flags 0.

    `values` are those of the fields in `_RANGES`, in their order: bytes, request, step and so on. If
    one does not fit, its field says "does not apply", and the record is counted as clipped.
    """
    numbers = [  # None for what is no number, or does not fit
        _to_int_within(value, *limits) for value, limits in zip(values, _RANGES, strict=True)
    ]
    fields = [
        absent if number is None else number
        for number, (_lowest, _highest, absent) in zip(numbers, _RANGES, strict=True)
    ]
    RECORD.pack_into(segment.memory, offset, start_ns, 0, *fields, 0, definition_id)
    if any(n is None and value is not None for n, value in zip(numbers, values, strict=True)):
        segment.recording.clipped_events.add()


def fits_step(step: Any) -> int | None:
    """Return `step` as a number that a record can hold; None if it cannot."""
    return _to_int_within(step, *_I32)


def _to_int_within(value: Any, lowest: int, highest: int, _absent: int) -> int | None:
    try:
        number = int.__index__(int(value))  # of a subclass, the number itself
    except Exception as error:  # noqa: BLE001 - a tensor or an array fails in its own way
        reraise_if_handlers(error)
        return None
    return number if lowest <= number <= highest else None
