"""Requests that record when they complete.

mpi4py's types are compiled and cannot be changed, so what a non-blocking call returns is turned into
an instance of our subclass of `MPI.Request` with the same handle. Its own methods see its completion;
but programs also write ``MPI.Request.Waitall(requests)``, which names the class, not our objects.
Therefore `install` puts the subclass in the place of `MPI.Request`. To the program nothing changes:
requests that others made pass `isinstance` and `issubclass` as before, and all else is inherited.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument.hooks.mpi_completions import COMPLETIONS, Completion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_instrument.hooks.mpi_flight import Flight

    _Request = MPI.Request
else:
    _Request = object  # what follows goes before either kind of request

__all__ = ["RecordingPrequest", "RecordingRequest", "install", "persistent", "recording"]

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
        return self._single(super().test, status, _first)

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


class RecordingRequest(_Recording, MPI.Request, metaclass=_LikePlain):
    """A request that is complete once."""


class RecordingPrequest(_Recording, MPI.Prequest, metaclass=_LikePersistent):
    """A persistent request: each start has something under way anew."""

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
    """Let ``MPI.Request.Waitall(requests)`` and its like be seen."""
    MPI.Request = RecordingRequest  # type: ignore[misc] # see the module's docstring
    MPI.Prequest = RecordingPrequest  # type: ignore[misc]


def _first(result: Any) -> bool:
    return bool(result[0])


def _watching(name: str, row: Completion) -> classmethod[RecordingRequest, ..., Any]:
    """Make a class method that looks which requests a call of MPI's has completed."""
    original = getattr(_Plain, name)

    @functools.wraps(original)
    def method(_cls: type, requests: Sequence[MPI.Request], told: Any = None, **named: Any) -> Any:
        told = named.pop(row.argument, told)
        if told is None and any(_needs_status(request) for request in requests):
            told = row.room()
        try:
            result = original(requests, told, **named)
        except BaseException:
            row.fail(requests)
            raise
        row.finish(result, requests, told)
        return result

    return classmethod(method)


def _needs_status(request: MPI.Request) -> bool:
    flight = getattr(request, "_flight", None)
    return flight is not None and flight.needs_status


for _name, _row in COMPLETIONS.items():
    setattr(_Recording, _name, _watching(_name, _row))
