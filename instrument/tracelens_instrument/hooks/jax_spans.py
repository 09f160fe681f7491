"""From the operations that XLA ran to spans: collectives one by one, computation put together."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Operation", "Seen", "spans_of"]

# XLA's names, and those of JAX's primitives, which it takes over where it can.
_COLLECTIVES: Final = (
    (re.compile(r"psum_scatter|reduce[-_]scatter"), "reduce_scatter"),
    (re.compile(r"all[-_]reduce|psum|pmean|pmax|pmin"), "allreduce"),
    (re.compile(r"all[-_]gather"), "all_gather"),
    (re.compile(r"all[-_]to[-_]all"), "all_to_all"),
    (re.compile(r"collective[-_]broadcast|pbroadcast"), "broadcast"),
)
_TOUCHING_NS: Final = 50_000  # what lies between two operations of one computation


@dataclass(frozen=True)
class Operation:
    """An operation of a compiled function, on the monotonic clock."""

    name: str
    module: str
    device: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Seen:
    """A span to record; without `op` it is computation."""

    name: str
    op: str | None
    start_ns: int
    end_ns: int
    step: int
    seq: int = 0


def spans_of(operations: Iterable[Operation], steps: Mapping[int, int]) -> Iterator[Seen]:
    """Yield spans by time.

    Args:
        operations: What was run; of several devices of a process the first counts.
        steps: The steps that were profiled, and when each began.
    """
    by_time = sorted(operations, key=lambda operation: operation.start_ns)
    first = min((operation.device for operation in by_time), default=0)
    begins = sorted((begin, step) for step, begin in steps.items())
    calls: Counter[str] = Counter()
    computing: list[tuple[int, int]] = []
    for operation in by_time:
        step = _step_at(operation.start_ns, begins)
        if operation.device != first or step is None:
            continue
        op = _collective(operation.name)
        if op is None:
            _extend(computing, operation)
            continue
        name = f"{operation.module}/{operation.name}"
        yield Seen(name, op, operation.start_ns, operation.end_ns, step, calls[name])
        calls[name] += 1
    for begin, end in computing:
        yield Seen("computation", None, begin, end, _step_at(begin, begins) or 0)


def _collective(name: str) -> str | None:
    return next((op for pattern, op in _COLLECTIVES if pattern.match(name)), None)


def _step_at(moment: int, begins: list[tuple[int, int]]) -> int | None:
    at = bisect_right(begins, moment, key=lambda pair: pair[0])
    return begins[at - 1][1] if at else None


def _extend(computing: list[tuple[int, int]], operation: Operation) -> None:
    """Add an operation to those before it, if it touches them."""
    if computing and operation.start_ns <= computing[-1][1] + _TOUCHING_NS:
        begin, end = computing[-1]
        computing[-1] = begin, max(end, operation.end_ns)
    else:
        computing.append((operation.start_ns, operation.end_ns))
