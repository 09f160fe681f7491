"""How much of a recording is kept: what the user asked for, in a call or by the environment.

``keep`` is ``all``, ``last:N`` (the last N steps), ``every:N`` or ``every:N:BURST`` (the detail of BURST
consecutive steps out of every N). ``budget`` is how many bytes a process may have on disk. ``detail`` is
how closely framework hooks look: ``step``, ``phase``, ``layer`` or ``op``, each with those before it.
"""

from __future__ import annotations

import os
import re

from tracelens.errors import InvalidArgument
from tracelens.schema.side import Retention
from tracelens.schema.vocabulary import DETAILS
from tracelens_instrument.core.arguments import one_of, text_or_empty
from tracelens_instrument.core.failures import short_repr, warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, TypeVar

    T = TypeVar("T")

__all__ = [
    "BUDGET_VARIABLE",
    "DEFAULT_DETAIL",
    "DETAIL_VARIABLE",
    "KEEP_VARIABLE",
    "Retention",
    "checked_detail",
    "described",
    "from_environment",
    "parse",
    "read_retention",
    "to_environment",
]

KEEP_VARIABLE: Final = "TRACELENS_KEEP"
BUDGET_VARIABLE: Final = "TRACELENS_BUDGET"
DETAIL_VARIABLE: Final = "TRACELENS_DETAIL"
DEFAULT_DETAIL: Final = "phase"

_MIN_BUDGET_BYTES: Final = 10**6  # a few segments, or nothing can be kept
_MAX_BUDGET_BYTES: Final = 2**63 - 1
_LAST: Final = r"last:([0-9]{1,9})"
_EVERY: Final = r"every:([0-9]{1,9})(?::([0-9]{1,9}))?"
_SIZE: Final = r"(?i)([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([kmgt]?)(i?)b?"
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_KeepRule = tuple[int | None, int | None, int]  # in steps: last, every, burst
_ALL: Final[_KeepRule] = (None, None, 1)


def parse(
    keep: str | None = None, budget: int | str | None = None, detail: str | None = None
) -> Retention:
    """Return the retention that a user asks for; None means all steps, any size, phase by phase.

    Raises:
        InvalidArgument: one of them is not among what this module's description names.
    """
    keep_rule = _ALL if keep is None else _parse_keep(keep)
    budget_bytes = None if budget is None else _parse_budget(budget)
    level = DEFAULT_DETAIL if detail is None else checked_detail(detail)
    return Retention(*keep_rule, budget_bytes, level)


def from_environment() -> Retention:
    """Read the retention from the environment; warn once of an invalid value, and ignore it."""
    return read_retention(keep=None, budget=None, detail=None)


def read_retention(keep: str | None, budget: int | str | None, detail: str | None) -> Retention:
    """Return the retention from the arguments, or else from the environment.

    Raises:
        InvalidArgument: what is given makes no sense.
    """
    keep_rule = _argument_or_variable(keep, KEEP_VARIABLE, _parse_keep) or _ALL
    budget_bytes = _argument_or_variable(budget, BUDGET_VARIABLE, _parse_budget)
    level = _argument_or_variable(detail, DETAIL_VARIABLE, checked_detail) or DEFAULT_DETAIL
    return Retention(*keep_rule, budget_bytes, level)


def checked_detail(detail: object) -> str:
    """Return a level of detail, checked.

    Raises:
        InvalidArgument: the value is no level.
    """
    return one_of("detail", detail, DETAILS)


def to_environment(retention: Retention) -> dict[str, str]:
    """Return the variables from which a process that inherits them reads the same."""
    budget_bytes = retention.budget_bytes
    return {
        KEEP_VARIABLE: _to_keep_text(retention),
        BUDGET_VARIABLE: "" if budget_bytes is None else str(budget_bytes),
        DETAIL_VARIABLE: retention.detail or "",
    }


def described(retention: Retention) -> str:
    """Describe in words what is kept."""
    budget_bytes = retention.budget_bytes
    within = "" if budget_bytes is None else f" within {budget_bytes:,} bytes"
    return f"{_to_keep_text(retention)}{within} at detail {retention.detail}"


def _to_keep_text(retention: Retention) -> str:
    if retention.last is not None:
        return f"last:{retention.last}"
    if retention.every is not None:
        return f"every:{retention.every}:{retention.burst}"
    return "all"


def _argument_or_variable(
    argument: object, variable: str, parse: Callable[[object], T]
) -> T | None:
    """Return the parsed argument, or without one that of the environment; None without either."""
    if argument is not None:
        return parse(argument)
    text = os.environ.get(variable)
    try:
        return parse(text) if text else None
    except InvalidArgument as error:
        warn_once(f"{variable} is passed over: {error}")
        return None


def _parse_keep(keep: object) -> _KeepRule:
    """Return (last, every, burst): keep the last steps, or `burst` steps out of `every`; None = all."""
    text = text_or_empty(keep)
    if text == "all":
        return _ALL
    last_match, every_match = re.fullmatch(_LAST, text), re.fullmatch(_EVERY, text)
    if last_match and int(last_match[1]) > 0:
        return int(last_match[1]), None, 1
    if every_match and 0 < int(every_match[2] or 1) <= int(every_match[1]):
        return None, int(every_match[1]), int(every_match[2] or 1)
    raise InvalidArgument(
        f"keep is {short_repr(keep)}, expected all, last:N, every:N or every:N:BURST, where N is a "
        "number of steps from 1, and BURST one up to N."
    )


def _parse_budget(budget: object) -> int:
    budget_bytes = _parse_bytes(budget)
    if budget_bytes is None or not _MIN_BUDGET_BYTES <= budget_bytes <= _MAX_BUDGET_BYTES:
        raise InvalidArgument(
            f"budget is {short_repr(budget)}, expected a number of bytes from {_MIN_BUDGET_BYTES} or "
            "a text such as 500MB or 4GB."
        )
    return budget_bytes


def _parse_bytes(budget: object) -> int | None:
    """Return the bytes that a number or a text such as ``4 GiB`` means; None if it is neither."""
    if isinstance(budget, int) and not isinstance(budget, bool):
        return int.__index__(budget)
    match = re.fullmatch(_SIZE, text_or_empty(budget).strip())
    if match is None:
        return None
    unit_bytes: int = (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return int(float(match[1]) * unit_bytes) if "." in match[1] else int(match[1]) * unit_bytes
