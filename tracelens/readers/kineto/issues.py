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
    """Return when (ns) each work was issued, by its row; work whose issue is not known is left out.

    Both are in order of time. Work at the begin of a file may have been issued before it.
    """
    issued_sizes = {
        op: {call.elements for call in calls}
        for op, calls in _group_calls(issues, attrgetter("op")).items()
    }
    compares_size = {
        op: None not in issued_sizes.get(op, {None})
        and {call.elements for call in calls} <= issued_sizes[op]
        for op, calls in _group_calls(works, attrgetter("op")).items()
    }

    def match_key(call: Call) -> Hashable:
        return call.op, call.elements if compares_size.get(call.op) else None

    issue_by_work: dict[int, int] = {}
    issues_by_key = _group_calls(issues, match_key)
    for key, calls in _group_calls(works, match_key).items():
        work_begins_ns = np.array([call.start_ns for call in calls])
        issued_at_ns = np.array([call.start_ns for call in issues_by_key.get(key, ())], np.int64)
        surplus_works = np.searchsorted(work_begins_ns, issued_at_ns) - np.arange(len(issued_at_ns))
        skipped_works = int(surplus_works.max(initial=0))  # they were issued before the file begins
        rows = [call.row for call in calls[skipped_works:]]
        issue_by_work |= dict(zip(rows, issued_at_ns.tolist(), strict=False))
    return issue_by_work


def elements(dimensions: object, depth: int = MAX_DEPTH_OF_TENSOR_LISTS) -> int | None:
    """Count the elements of all tensors; their dimensions are lists within lists."""
    if not isinstance(dimensions, list) or not depth:
        return None
    if dimensions and all(type(size) is int for size in dimensions):
        return prod(dimensions)
    return sum(elements(inner, depth - 1) or 0 for inner in dimensions)


def _group_calls(
    calls: Iterable[Call], key: Callable[[Call], Hashable]
) -> dict[Hashable, list[Call]]:
    groups: dict[Hashable, list[Call]] = defaultdict(list)
    for call in calls:
        groups[key(call)].append(call)
    return groups
