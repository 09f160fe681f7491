"""Attempts whose ranks could not connect at their start: refused, in use, or timed out.

Such a failure is a consequence: of a rank or host that is not reachable, or of a port that the attempt
before still holds. So each rank is named with what it could not reach, and none as the culprit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens.accounting.life.failures import Failure

_CAUSES: Final = (
    *("ConnectionRefusedError", "ConnectionResetError", "ConnectionError", "TimeoutError"),
    *("DistNetworkError", "DistStoreError", "RendezvousConnectionError", "RendezvousTimeoutError"),
    "gaierror",
)
_IN_USE: Final = ("address already in use", "eaddrinuse")
_WORDS: Final = (
    *("connection refused", "failed to connect", "unable to connect", "could not connect"),
    *("connectfullmesh", "trying to connect", "timed out connecting", "waiting for clients"),
    *("socket timeout", "wait timeout", "rendezvous", "no route to host", "host unreachable"),
    *("network is unreachable", "name or service not known", "name resolution", "getkeyvalue"),
)
# Addresses in messages: (host, 29500), [host]:29500 or host:29500.
_ADDRESSES: Final = (
    re.compile(r"\(([\w.:-]+), (\d+)\)"),
    re.compile(r"\[([\w.:-]+)\]:(\d+)"),
    re.compile(r"\b([a-zA-Z0-9][\w-]*(?:\.[\w-]+)*):(\d{2,5})\b"),
)
_PORT: Final = re.compile(r"\bport:? (\d+)", re.IGNORECASE)


def is_connection_failure(failure: Failure) -> bool:
    """Return True if a rank failed because it could not connect or listen."""
    message = failure.message.lower()
    has_words = any(word in message for word in (*_WORDS, *_IN_USE))
    return failure.cause in _CAUSES or has_words


def describe_connection_failures(failures: Iterable[Failure], absent_ranks: Sequence[int]) -> str:
    """Describe what the ranks of an attempt could not reach at its start, as a sentence.

    Args:
        failures: Those of the attempt that are connection failures.
        absent_ranks: Ranks of the job that left nothing of this attempt.
    """
    ranks_by_clause: dict[str, list[int]] = {}
    for failure in sorted(failures, key=lambda failure: (not _is_in_use(failure), failure.rank)):
        ranks_by_clause.setdefault(_describe_obstacle(failure), []).append(failure.rank)
    clauses = [
        f"{fmt.listing('rank', ranks)} {clause}" for clause, ranks in ranks_by_clause.items()
    ]
    if absent_ranks:
        clauses.append(f"{fmt.listing('rank', absent_ranks)} left no recording of it")
    return f"its ranks could not connect at the start: {'; '.join(clauses)}"


def _is_in_use(failure: Failure) -> bool:
    return any(word in failure.message.lower() for word in _IN_USE)


def _describe_obstacle(failure: Failure) -> str:
    """Describe what a rank could not reach, as a predicate."""
    address = _find_address(failure.message)
    if _is_in_use(failure):
        port = _PORT.search(failure.message)
        where = f" on port {port[1]}" if port else f" on {address}" if address else ""
        return f"could not listen{where}, as the address is in use ({_name(failure)})"
    if address:
        return f"could not reach {address} ({_name(failure)})"
    return f"got {failure.text}"


def _name(failure: Failure) -> str:
    """Name an exception with its line."""
    return f"{failure.cause} at {failure.user_frame}" if failure.user_frame else failure.cause


def _find_address(message: str) -> str | None:
    """Return the address in a message as host:port; None without one."""
    for pattern in _ADDRESSES:
        address = pattern.search(message)
        if address:
            return f"{address[1]}:{address[2]}"
    return None
