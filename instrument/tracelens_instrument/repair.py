"""Values that do not fit into a record: the event is kept, without them."""

from __future__ import annotations

from tracelens.schema.record import NO_BYTES, NO_INDEX, NO_REQUEST, NO_SEQ, NO_SHORT, RECORD
from tracelens_instrument.failures import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from tracelens_instrument.segments import Segment

__all__ = ["fits_step", "write_what_fits"]

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


def write_what_fits(
    segment: Segment, offset: int, start_ns: int, values: tuple[Any, ...], definition: int
) -> None:
    """Write an open record; count it if a value other than None had to be left out."""
    numbers = [_number(value, *limits) for value, limits in zip(values, _RANGES, strict=True)]
    written = [
        absent if number is None else number
        for number, (_, _, absent) in zip(numbers, _RANGES, strict=True)
    ]
    RECORD.pack_into(segment.memory, offset, start_ns, 0, *written, 0, definition)
    if any(n is None and v is not None for n, v in zip(numbers, values, strict=True)):
        segment.owner.clipped.add()


def fits_step(step: Any) -> int | None:
    """Return `step` as a number that a record can hold; None if it cannot."""
    return _number(step, *_I32)


def _number(value: Any, lowest: int, highest: int, _absent: int) -> int | None:
    try:
        number = int.__index__(int(value))  # of a subclass, the number itself
    except Exception as error:  # noqa: BLE001 - a tensor or an array fails in its own way
        let_through(error)
        return None
    return number if lowest <= number <= highest else None
