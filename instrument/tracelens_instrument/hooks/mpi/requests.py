"""Requests that record when they complete, one by one or several at once.

mpi4py's types are compiled and cannot be changed, so what a non-blocking call returns is turned into
an instance of our subclass of `MPI.Request` with the same handle. Its own methods see its completion;
but programs also write ``MPI.Request.Waitall(requests)``, which names the class, not our objects.
Therefore `install` puts the subclass in the place of `MPI.Request`. To the program nothing changes:
requests that others made pass `isinstance` and `issubclass` as before, and all else is inherited.
A table says of such class methods which requests are complete when they return.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument.hooks.base import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "COMPLETIONS",
    "Completion",
    "RecordingPrequest",
    "RecordingRequest",
    "install",
    "persistent",
    "recording",
]


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
    def finish(self, result: Any, requests: Sequence[MPI.Request], statuses: Any) -> None:
        """End what the complete requests had under way."""
        for position, index in enumerate(self.completed(result, len(requests))):
            _end_request(
                requests[index], self._status(statuses, position if self.packed else index)
            )

    @guarded
    def fail(self, requests: Sequence[MPI.Request]) -> None:
        """End, as failed, what all the requests had under way."""
        for request in requests if self.all_fail else ():
            _end_request(request, None, failed=True)

    def _status(self, statuses: Any, index: int) -> MPI.Status | None:
        if isinstance(statuses, list):
            return statuses[index] if index < len(statuses) else None
        return statuses if isinstance(statuses, MPI.Status) else None


def _end_request(request: Any, status: MPI.Status | None, *, failed: bool = False) -> None:
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_instrument.hooks.mpi.log import Flight

    _Request = MPI.Request
else:
    _Request = object  # what follows goes before either kind of request

_Plain: Final = MPI.Request
_PlainPersistent: Final = MPI.Prequest


class _LikePlain(type):
    """Lets any request pass as an instance of `RecordingRequest`, which stands for `MPI.Request`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Plain)


class _LikePersistent(type):
    """The same for `MPI.Prequest`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _PlainPersistent)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _PlainPersistent)


class _Recording(_Request):
    """Ends what a call has under way when its request is seen to complete."""

    _flight: Flight | None = None
    _begin: Callable[[], Flight | None] | None = None

    def Wait(self, status: MPI.Status | None = None) -> Any:  # noqa: N802 - MPI's
        return self._single(super().Wait, status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        return self._single(super().wait, status)

    def Test(self, status: MPI.Status | None = None) -> Any:  # noqa: N802 - MPI's
        return self._single(super().Test, status, bool)

    def test(self, status: MPI.Status | None = None) -> Any:
        return self._single(super().test, status, _completed)

    def Cancel(self) -> None:  # noqa: N802 - MPI's
        super().Cancel()
        if self._flight is not None:
            self._flight.cancel()

    def cancel(self) -> None:
        self.Cancel()

    def Free(self) -> None:  # noqa: N802 - MPI's
        super().Free()
        self._end(None)  # the last moment at which anybody can say something of it

    def _single(
        self,
        call: Callable[..., Any],
        status: MPI.Status | None,
        done: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        flight = self._flight
        if flight is None:
            return call(status)
        if status is None and flight.needs_status:
            status = MPI.Status()
        try:
            result = call(status)
        except BaseException:
            self._end(status, failed=True)
            raise
        if done(result):
            self._end(status)
        return result

    def _go(self) -> None:
        if self._begin is not None:
            self._flight = self._begin()

    def _end(self, status: MPI.Status | None, *, failed: bool = False) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.end(status, failed)


def _completed(result: Any) -> bool:
    return bool(result[0])


class RecordingRequest(_Recording, MPI.Request, metaclass=_LikePlain):
    """A request that is complete once."""


class RecordingPrequest(_Recording, MPI.Prequest, metaclass=_LikePersistent):
    """A persistent request: each start begins a new operation."""

    def Start(self) -> None:  # noqa: D102, N802 - MPI's
        self._go()
        try:
            super().Start()
        except BaseException:
            self._end(None, failed=True)
            raise

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:  # noqa: D102, N802 - MPI's
        ours = [request for request in requests if isinstance(request, _Recording)]
        for request in ours:
            request._go()  # noqa: SLF001 - this module's own class
        try:
            _PlainPersistent.Startall(requests)
        except BaseException:
            for request in ours:
                request._end(None, failed=True)  # noqa: SLF001
            raise


def persistent(request: MPI.Prequest, begin: Callable[[], Flight | None]) -> MPI.Prequest:
    """Return a persistent request with the same handle that calls `begin` at each start."""
    found = RecordingPrequest(request)
    found._begin = begin  # noqa: SLF001 - this module's own class
    return found


def recording(request: MPI.Request, flight: Flight) -> MPI.Request:
    """Return a request with the same handle that ends `flight`."""
    found = RecordingRequest(request)
    found._flight = flight  # noqa: SLF001 - this module's own class
    return found


def install() -> None:
    """Record completions through class methods such as ``MPI.Request.Waitall(requests)``."""
    MPI.Request = RecordingRequest  # type: ignore[misc] # see the module's docstring
    MPI.Prequest = RecordingPrequest  # type: ignore[misc]


def _watching(name: str, row: Completion) -> classmethod[RecordingRequest, ..., Any]:
    """Make a class method that looks which requests a call of MPI's has completed."""
    original = getattr(_Plain, name)

    @functools.wraps(original)
    def method(
        _cls: type, requests: Sequence[MPI.Request], statuses: Any = None, **named: Any
    ) -> Any:
        statuses = named.pop(row.argument, statuses)
        if statuses is None and any(_needs_status(request) for request in requests):
            statuses = row.room()
        try:
            result = original(requests, statuses, **named)
        except BaseException:
            row.fail(requests)
            raise
        row.finish(result, requests, statuses)
        return result

    return classmethod(method)


def _needs_status(request: MPI.Request) -> bool:
    flight = getattr(request, "_flight", None)
    return flight is not None and flight.needs_status


for _name, _row in COMPLETIONS.items():
    setattr(_Recording, _name, _watching(_name, _row))
