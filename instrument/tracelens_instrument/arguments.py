"""What the recorder's functions are given: taken as it is meant, or refused in one sentence.

Texts and numbers come out as Python's own, whatever their class: a class of the user's may compare, hash
or print itself in any way, and fail at it.
"""

from __future__ import annotations

import _operator as operator  # where `operator` has it from, which takes a while

from tracelens.errors import InvalidArgument
from tracelens.schema.light_path import Path
from tracelens.schema.vocabulary import KINDS, OPS, ROLES
from tracelens_instrument.failures import let_through, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

__all__ = [
    "any_text",
    "checked_kind",
    "index",
    "is_true",
    "one_of",
    "path",
    "role",
    "text",
    "text_or_nothing",
]

_MOST: Final = 2**31


def text(what: str, value: object) -> str:
    """Take what must be a text.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is {shown(value)}, expected a text.")
    return str.__str__(value)


def any_text(value: object) -> str:
    """Take anything as a text, while training runs; what has no words is called by its class."""
    if type(value) is str:
        return value
    try:
        return str.__str__(value if isinstance(value, str) else str(value))
    except Exception as error:  # noqa: BLE001 - objects may fail to describe themselves
        let_through(error)
        return type(value).__name__


def checked_kind(kind: object, op: object) -> tuple[str, str | None]:
    """Take a kind, and an operation that it has.

    Raises:
        InvalidArgument: there is no such kind, or it has no such operation.
    """
    found = one_of("kind", kind, KINDS)
    if op is None:
        return found, None
    return found, one_of(f"op of kind {found!r}", op, OPS.get(found, ()))


def role(value: object) -> str | None:
    """Take a role, or None.

    Raises:
        InvalidArgument: there is no such role.
    """
    return None if value is None else one_of("role", value, ROLES)


def index(what: str, value: Any, lowest: int = 0) -> int | None:
    """Take None, or what is an integer from `lowest`, also one of another library.

    Raises:
        InvalidArgument: it is neither.
    """
    if value is None:
        return None
    try:
        number = int.__index__(operator.index(value))
    except Exception as error:  # noqa: BLE001 - a tensor or an array fails in its own way
        let_through(error)
        number = lowest - 1
    if not lowest <= number < _MOST:
        raise InvalidArgument(f"{what} is {shown(value)}, expected a number from {lowest}.")
    return number


def path(what: str, value: Any) -> Path | None:
    """Take None, or what names a file.

    Raises:
        InvalidArgument: it is neither.
    """
    try:
        return None if value is None else Path(value)
    except Exception as error:
        let_through(error)
        raise InvalidArgument(f"{what} is {shown(value)}, expected a path.") from error


def is_true(value: Any) -> bool:
    """Take anything as true or false; what does not say counts as true."""
    try:
        return bool(value)
    except Exception as error:  # noqa: BLE001 - an array of several values has no truth
        let_through(error)
        return True


def one_of(what: str, value: object, known: tuple[str, ...]) -> str:
    """Take one of the words that there are.

    Raises:
        InvalidArgument: it is none of them.
    """
    found = text_or_nothing(value)
    if found not in known:
        expected = f"one of {', '.join(known)}" if known else "none"
        raise InvalidArgument(f"{what} is {shown(value)}, expected {expected}.")
    return found


def text_or_nothing(value: object) -> str:
    """Take a text; anything else is an empty one."""
    return str.__str__(value) if isinstance(value, str) else ""
