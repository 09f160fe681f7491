"""Communicators that record themselves: classes made from the table, with MPI's own as their base.

They are real subclasses with the same handle, so they pass wherever mpi4py wants a communicator. Each
method asks the communicator's log to begin a span, calls MPI's method once with what it was given, and
ends the span. If the log fails nothing is recorded, and the call is made all the same.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.mpi import requests
from tracelens_instrument.hooks.mpi.log import Flight, Log
from tracelens_instrument.hooks.mpi.table import (
    COLLECTIVES,
    DERIVING,
    PERSISTENT,
    PERSISTENT_MESSAGES,
    POINT_TO_POINT,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracelens_instrument.hooks.mpi.table import Collective, PointToPoint

__all__ = ["known_communicator", "record_communicator"]

_CLASSES: Final[dict[type, type]] = {}
_KNOWN: Final[dict[int, MPI.Intracomm]] = {}


def known_communicator(comm: MPI.Intracomm) -> MPI.Intracomm | None:
    """Return the communicator that already records this handle."""
    return comm if getattr(comm, "_log", None) is not None else _KNOWN.get(comm.handle)


def record_communicator(comm: MPI.Intracomm, name: str) -> MPI.Intracomm:
    """Return a communicator with the same handle that records itself under this name."""
    log = Log(comm, name)
    found: MPI.Intracomm = _class_for(type(comm))(comm)
    found._log = log  # type: ignore[attr-defined] # noqa: SLF001 - of the class made below
    _KNOWN[comm.handle] = found
    return found


def _class_for(base: type) -> type:
    if hasattr(base, "_log"):
        return base
    if base not in _CLASSES:
        _CLASSES[base] = type(f"Recording{base.__name__}", (base,), _namespace(base))
    return _CLASSES[base]


def _namespace(base: type) -> dict[str, Any]:
    methods: dict[str, Any] = {"_log": None, "__doc__": f"A {base.__name__} that records itself."}
    for name, row in COLLECTIVES.items():
        if hasattr(base, name):
            make = _issuing if name[0] == "I" else _blocking
            methods[name] = make(name, getattr(base, name), row)
    for name, begin, row in _persistent_rows():
        if hasattr(base, name):
            methods[name] = _persisting(name, getattr(base, name), begin, row)
    for name, message in POINT_TO_POINT.items():
        methods[name] = _messaging(name, getattr(base, name), message)
    for name in DERIVING:
        if hasattr(base, name):
            methods[name] = _deriving(name, getattr(base, name))
    for name in ("Free", "free", "Disconnect"):
        methods[name] = _forgetting(getattr(base, name))
    methods["__reduce__"] = _reducing(base)
    return methods


def _persistent_rows() -> Iterator[tuple[str, Callable[..., Flight | None], Any]]:
    for name, row in PERSISTENT.items():
        yield name, _begin_flight, row
    for name, message in PERSISTENT_MESSAGES.items():
        yield name, _begin_messages, message


def _persisting(
    name: str, original: Callable[..., Any], begin: Callable[..., Flight | None], row: Any
) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, *args, **kwargs)
        if self._log is None:
            return request
        return requests.persistent(
            request, functools.partial(begin, self._log, name, row, args, kwargs)
        )

    return method


def _blocking(name: str, original: Callable[..., Any], row: Collective) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _begin_collective(self._log, name, row, args, kwargs)
        if token is None:
            return original(self, *args, **kwargs)
        with token:
            return original(self, *args, **kwargs)

    return method


def _issuing(name: str, original: Callable[..., Any], row: Collective) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = _begin_flight(self._log, name, row, args, kwargs)
        if flight is None:
            return original(self, *args, **kwargs)
        try:
            request = original(self, *args, **kwargs)
        except BaseException:
            flight.end(failed=True)
            raise
        return requests.recording(request, flight)

    return method


def _messaging(name: str, original: Callable[..., Any], row: PointToPoint) -> Callable[..., Any]:
    immediate = name[0] in "Ii"

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = _begin_messages(self._log, name, row, args, kwargs)
        if flight is None:
            return original(self, *args, **kwargs)
        if flight.receipt is not None and not immediate:
            args, kwargs = _with_status(flight, row, args, kwargs)
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            flight.end(failed=True)
            raise
        if immediate:
            return requests.recording(result, flight)
        flight.end()
        return result

    return method


def _with_status(
    flight: Flight, row: PointToPoint, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Ask MPI for the status, if the program has not."""
    if flight.status is None:
        flight.status = MPI.Status()
        kwargs = dict(zip(row.parameters, args, strict=False)) | kwargs | {"status": flight.status}
        args = ()
    return args, kwargs


def _deriving(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        return made if self._log is None else _derived(made, f"{self._log.name}.{name}") or made

    return method


def _forgetting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _KNOWN.pop(self.handle, None)
        return original(self, *args, **kwargs)

    return method


def _reducing(base: type) -> Callable[..., Any]:
    """Pickle what it stands for, which mpi4py can do with the communicators that all processes have."""
    return lambda self: (_unpickled, (base(self),))


def _unpickled(comm: MPI.Intracomm) -> MPI.Intracomm:
    return known_communicator(comm) or comm


@guarded
def _derived(made: MPI.Intracomm, name: str) -> MPI.Intracomm | None:
    return None if made == MPI.COMM_NULL else record_communicator(made, name)


@guarded
def _begin_collective(
    log: Log | None,
    name: str,
    row: Collective,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if log is None:
        return None
    return log.collective(name, row, dict(zip(row.parameters, args, strict=False)) | kwargs)


def _begin_flight(
    log: Log | None,
    name: str,
    row: Collective,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flight | None:
    token = _begin_collective(log, name, row, args, kwargs)
    if token is None:
        return None
    flight = Flight()
    flight.tokens.append(token)
    return flight


@guarded
def _begin_messages(
    log: Log | None,
    name: str,
    row: PointToPoint,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flight | None:
    if log is None:
        return None
    return log.messages(name, row, dict(zip(row.parameters, args, strict=False)) | kwargs)
