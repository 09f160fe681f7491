"""Pairs communication on threads of a library with the calls of the code that issued it.

Work belongs to an issue of the same operation and, where both say it, of the same size. Work that is
equal in both is begun in the order of its issues.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

__all__ = ["Call", "elements", "pair_with_issues"]

# lists within each other: arguments are tensors, lists of tensors, or lists of such lists [definition]
MAX_DEPTH_OF_TENSOR_LISTS: Final = 4


class Call(NamedTuple):
    """A row of a file that issues or does communication; `elements` is null where it is not known."""

    row: int
    op: str
    elements: int | None
    start_ns: int


def pair_with_issues(works: Sequence[Call], issues: Sequence[Call]) -> dict[int, int]:
    """Return when each work was issued, by its row; work whose issue is not known is left out.

    Both are in order of time. Work at the begin of a file may have been issued before it.
    """
    sizes = {
        op: {call.elements for call in calls}
        for op, calls in _group(issues, attrgetter("op")).items()
    }
    is_sized = {
        op: None not in sizes.get(op, {None}) and {call.elements for call in calls} <= sizes[op]
        for op, calls in _group(works, attrgetter("op")).items()
    }

    def key(call: Call) -> Hashable:
        return call.op, call.elements if is_sized.get(call.op) else None

    issued_ns: dict[int, int] = {}
    issued = _group(issues, key)
    for kind, calls in _group(works, key).items():
        begun = np.array([call.start_ns for call in calls])
        issued_at_ns = np.array([call.start_ns for call in issued.get(kind, ())], np.int64)
        before = np.searchsorted(begun, issued_at_ns) - np.arange(len(issued_at_ns))
        first = int(before.max(initial=0))  # work that was issued before the file begins
        issued_ns |= {
            call.row: at for call, at in zip(calls[first:], issued_at_ns.tolist(), strict=False)
        }
    return issued_ns


def elements(dimensions: object, depth: int = MAX_DEPTH_OF_TENSOR_LISTS) -> int | None:
    """Count the elements of all tensors; their dimensions are lists within lists."""
    if not isinstance(dimensions, list) or not depth:
        return None
    if dimensions and all(type(size) is int for size in dimensions):
        return prod(dimensions)
    return sum(elements(inner, depth - 1) or 0 for inner in dimensions)


def _group(calls: Iterable[Call], key: Callable[[Call], Hashable]) -> dict[Hashable, list[Call]]:
    groups: dict[Hashable, list[Call]] = defaultdict(list)
    for call in calls:
        groups[key(call)].append(call)
    return groups
