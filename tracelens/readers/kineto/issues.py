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

# lists within each other: arguments are tensors, lists of tensors, or lists of such lists [definition]
MAX_DEPTH_OF_TENSOR_LISTS: Final = 4


class Call(NamedTuple):
    """A row of a file that issues or does communication."""

    row_index: int
    op: str
    element_count: int | None  # of its tensors, None if unknown
    start_ns: int


def pair_with_issues(works: Sequence[Call], issues: Sequence[Call]) -> dict[int, int]:
    """Return when (ns) each work was issued, by its row; work whose issue is not known is left out.

    Both are in order of time. Sizes are compared where all issues of an operation say theirs, and these
    are the sizes of its works. Work at the begin of a file may have been issued before it.
    """
    issued_sizes_by_op = {
        op: {call.element_count for call in calls}
        for op, calls in _group_calls(issues, attrgetter("op")).items()
    }
    compares_size_of_op = {
        op: None not in issued_sizes_by_op.get(op, {None})
        and {call.element_count for call in calls} <= issued_sizes_by_op[op]
        for op, calls in _group_calls(works, attrgetter("op")).items()
    }

    def match_key(call: Call) -> Hashable:
        return call.op, call.element_count if compares_size_of_op.get(call.op) else None

    issued_ns_by_row: dict[int, int] = {}
    issues_by_key = _group_calls(issues, match_key)
    for key, matching_works in _group_calls(works, match_key).items():
        begins_ns = np.array([work.start_ns for work in matching_works])
        issued_ns = np.array([issue.start_ns for issue in issues_by_key.get(key, ())], np.int64)
        # Work that began before the issue with its number was issued before the file begins.
        surplus_counts = np.searchsorted(begins_ns, issued_ns) - np.arange(len(issued_ns))
        surplus_count = int(surplus_counts.max(initial=0))
        rows = [work.row_index for work in matching_works[surplus_count:]]
        issued_ns_by_row |= dict(zip(rows, issued_ns.tolist(), strict=False))
    return issued_ns_by_row


def count_elements(dimensions: object, depth: int = MAX_DEPTH_OF_TENSOR_LISTS) -> int | None:
    """Count the elements of all tensors; their dimensions are lists within lists."""
    if not isinstance(dimensions, list) or not depth:
        return None
    if dimensions and all(type(size) is int for size in dimensions):
        return prod(dimensions)
    return sum(count_elements(inner, depth - 1) or 0 for inner in dimensions)


def _group_calls(
    calls: Iterable[Call], key: Callable[[Call], Hashable]
) -> dict[Hashable, list[Call]]:
    groups: dict[Hashable, list[Call]] = defaultdict(list)
    for call in calls:
        groups[key(call)].append(call)
    return groups
