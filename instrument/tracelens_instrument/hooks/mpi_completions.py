"""Class methods that complete several requests at once, as a table: which of them are complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument.hooks.base import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["COMPLETIONS", "Completion"]


@dataclass(frozen=True)
class Completion:
    """A class method: `completed` picks the indices of complete requests from what it returned.

    `packed` says that the statuses are those of the complete ones only; `all_fail` that an
    exception concerns all requests.
    """

    completed: Callable[[Any, int], Iterable[int]]
    argument: str = "statuses"
    packed: bool = False
    all_fail: bool = False

    def room(self) -> Any:
        """Return where MPI can write what it knows."""
        return [] if self.argument == "statuses" else MPI.Status()

    @guarded
    def finish(self, result: Any, requests: Sequence[MPI.Request], told: Any) -> None:
        """End what the complete requests had under way."""
        for position, index in enumerate(self.completed(result, len(requests))):
            _end(requests[index], self._status(told, position if self.packed else index))

    @guarded
    def fail(self, requests: Sequence[MPI.Request]) -> None:
        """End, as failed, what all the requests had under way."""
        for request in requests if self.all_fail else ():
            _end(request, None, failed=True)

    def _status(self, told: Any, index: int) -> MPI.Status | None:
        if isinstance(told, list):
            return told[index] if index < len(told) else None
        return told if isinstance(told, MPI.Status) else None


def _end(request: Any, status: MPI.Status | None, *, failed: bool = False) -> None:
    end = getattr(request, "_end", None)
    if end is not None:
        end(status, failed=failed)


def _every(_result: Any, count: int) -> Iterable[int]:
    return range(count)


def _every_if(flag: bool, count: int) -> Iterable[int]:  # noqa: FBT001 - what MPI returns
    return range(count) if flag else ()


def _one(index: int, count: int) -> Iterable[int]:
    return (index,) if 0 <= index < count else ()  # UNDEFINED is negative


def _one_if(result: tuple[Any, ...], count: int) -> Iterable[int]:
    return _one(result[0], count) if result[1] else ()


def _some(indices: list[int] | None, _count: int) -> Iterable[int]:
    return indices or ()


def _of_first(
    completed: Callable[[Any, int], Iterable[int]],
) -> Callable[[Any, int], Iterable[int]]:
    return lambda result, count: completed(result[0], count)


COMPLETIONS: Final[dict[str, Completion]] = {
    "Waitall": Completion(_every, all_fail=True),
    "waitall": Completion(_every, all_fail=True),
    "Testall": Completion(_every_if, all_fail=True),
    "testall": Completion(_of_first(_every_if), all_fail=True),
    "Waitany": Completion(_one, argument="status"),
    "waitany": Completion(_of_first(_one), argument="status"),
    "Testany": Completion(_one_if, argument="status"),
    "testany": Completion(_one_if, argument="status"),
    "Waitsome": Completion(_some, packed=True),
    "waitsome": Completion(_of_first(_some), packed=True),
    "Testsome": Completion(_some, packed=True),
    "testsome": Completion(_of_first(_some), packed=True),
}
