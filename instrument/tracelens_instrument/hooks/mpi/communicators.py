"""Functions in the place of methods of communicators and messages, which record the call.

Each asks the log of its communicator to begin a span, calls MPI's method once with what it was given,
and ends the span. If the log fails nothing is recorded, and the call is made all the same. Logs are
found by handle: all objects of a communicator share its log.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mpi4py import MPI

from tracelens_instrument.hooks.base import Switch, guarded
from tracelens_instrument.hooks.mpi import windows
from tracelens_instrument.hooks.mpi.log import CommLog, Flight, list_members
from tracelens_instrument.hooks.mpi.requests import (
    BEGIN_BY_REQUEST,
    FLIGHT_BY_REQUEST,
    ByObject,
    span_of,
)
from tracelens_instrument.hooks.mpi.table import (
    BLOCKING,
    DERIVING,
    MATCHED,
    MESSAGE_PROBES,
    NON_BLOCKING,
    PERSISTENT,
    PERSISTENT_MESSAGES,
    POINT_TO_POINT,
    PROBES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_instrument.hooks.mpi.log import Claim
    from tracelens_instrument.hooks.mpi.replaced import Function, Make, Replaced
    from tracelens_instrument.hooks.mpi.table import Collective, PointToPoint, Probe

    Spec = TypeVar("Spec")

__all__ = ["RECORDS_EVERYTHING", "is_known", "leave_out", "record_communicator", "replace"]

RECORDS_EVERYTHING: Final = Switch()  # on: also communicators that nobody has attached
_NULL: Final = MPI.COMM_NULL.handle
_LOG_BY_HANDLE: Final[dict[int, CommLog | None]] = {_NULL: None}  # None: it is not recorded
_CLAIMS: Final[ByObject[tuple[CommLog, Claim]]] = ByObject()
_CLASSES: Final = (
    MPI.Comm, MPI.Intracomm, MPI.Intercomm, MPI.Topocomm, MPI.Cartcomm, MPI.Graphcomm,
    MPI.Distgraphcomm,
)  # fmt: skip


def is_known(comm: MPI.Comm) -> bool:
    """Return True if this communicator records itself already."""
    return _LOG_BY_HANDLE.get(comm.handle) is not None


def leave_out(comm: MPI.Comm) -> None:
    """Record nothing of this communicator, nor of those that are made from it from now on."""
    _LOG_BY_HANDLE[comm.handle] = None


def record_communicator(comm: MPI.Comm, name: str) -> None:
    """Record what this communicator does from now on, under this name."""
    _LOG_BY_HANDLE[comm.handle] = CommLog(name, *list_members(comm))


def replace(replaced: Replaced) -> None:
    """Put functions that record in the place of all methods of the table."""
    replaced.replace(
        _CLASSES,
        _bind_specs(_make_blocking, BLOCKING)
        | _bind_specs(_make_issuing, NON_BLOCKING)
        | _bind_specs(_make_messaging, POINT_TO_POINT)
        | _bind_specs(functools.partial(_make_persistent, _begin_flight), PERSISTENT)
        | _bind_specs(functools.partial(_make_persistent, _begin_messages), PERSISTENT_MESSAGES)
        | _bind_specs(_make_deriving, DERIVING)
        | _bind_specs(_make_probing, PROBES)
        | dict.fromkeys(("Free", "free", "Disconnect"), _make_freeing),
    )
    replaced.replace(
        [MPI.Message],
        _bind_specs(_make_receiving, MATCHED) | _bind_specs(_make_probing, MESSAGE_PROBES),
    )
    replaced.replace([MPI.Win], windows.methods(_log_of, records_all=RECORDS_EVERYTHING.is_on))


def _bind_specs(
    make: Callable[[Spec, str, Function], Function], specs: Mapping[str, Spec]
) -> dict[str, Make]:
    return {name: functools.partial(make, spec) for name, spec in specs.items()}


def _log_of(comm: Any) -> CommLog | None:
    try:
        return _LOG_BY_HANDLE[comm.handle]
    except KeyError:
        return _record_unseen(comm) if RECORDS_EVERYTHING.is_on else None
    except AttributeError:  # it is no communicator, which MPI's method will say
        return None


@guarded
def _record_unseen(comm: MPI.Comm) -> CommLog | None:
    """Record a communicator that was not seen when it was made."""
    leave_out(comm)  # unless it turns out well
    if MPI.Is_finalized():
        return None
    record_communicator(comm, comm.name or f"MPI communicator of {comm.size}")
    return _LOG_BY_HANDLE[comm.handle]


def _make_blocking(spec: Collective, name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        token = _begin_collective(_log_of(self), name, spec, args, kwargs)
        if token is None:
            return mpi_method(self, *args, **kwargs)
        with token:
            return mpi_method(self, *args, **kwargs)

    return method


def _make_issuing(spec: Collective, name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        flight = _begin_flight(_log_of(self), name, spec, args, kwargs)
        return _issue(flight, mpi_method, self, args, kwargs)

    return method


def _make_messaging(spec: PointToPoint, name: str, mpi_method: Function) -> Function:
    """Make the method that records what a call sends and receives; `spec` names its arguments."""
    is_immediate = name[0] in "Ii"  # it returns a request

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send or receive in spans, which end with the request if the method returns one."""
        flight = _begin_messages(_log_of(self), name, spec, args, kwargs)
        if is_immediate or flight is None:
            return _issue(flight, mpi_method, self, args, kwargs)
        if flight.receipt is not None:  # its sender is known by the status
            args, kwargs, flight.status = _with_status(spec.parameters, args, kwargs)
        try:
            result = mpi_method(self, *args, **kwargs)
        except BaseException:
            flight.end(failed=True)
            raise
        flight.end()
        return result

    return method


def _issue(
    flight: Flight | None, mpi_method: Function, owner: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Call a method that returns a request, which ends the flight."""
    if flight is None:
        return mpi_method(owner, *args, **kwargs)
    try:
        request = mpi_method(owner, *args, **kwargs)
    except BaseException:
        flight.end(failed=True)
        raise
    FLIGHT_BY_REQUEST.put(request, flight)
    return request


def _make_persistent(
    begin: Callable[..., Flight | None], spec: Any, name: str, mpi_method: Function
) -> Function:
    """Make the method whose request can be started again and again; each start calls `begin`.

    `begin` returns the open spans of the call; `spec` names the parameters of method `name`.
    """

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        request = mpi_method(self, *args, **kwargs)
        log = _log_of(self)
        if log is not None:
            BEGIN_BY_REQUEST.put(request, functools.partial(begin, log, name, spec, args, kwargs))
        return request

    return method


def _make_deriving(spec: Collective, name: str, mpi_method: Function) -> Function:
    """Make the method `name` that returns a new communicator, to be recorded if this one is."""
    record_call = _make_blocking(spec, name, mpi_method)

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = record_call(self, *args, **kwargs)
        _record_derived(_log_of(self), result, name)
        return result

    return method


@guarded
def _record_derived(log: CommLog | None, result: Any, method_name: str) -> None:
    """Record the communicator that a method of another one, with this log, returned."""
    is_pending = isinstance(result, tuple)  # with a request: until that is complete, ask nothing
    comm = result[0] if is_pending else result
    leave_out(comm)  # unless it turns out well
    if log is None or not comm:
        return
    name = f"{log.communicator_name}.{method_name}"
    if is_pending:
        _LOG_BY_HANDLE[comm.handle] = CommLog(name, log.member_ranks, log.peer_ranks)
    else:
        record_communicator(comm, name)


def _make_freeing(_name: str, mpi_method: Function) -> Function:
    """Make the method after which a communicator is not recorded, because its handle is reused."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Free the communicator, and forget its log if MPI has freed it (None: it is left out)."""
        handle = getattr(self, "handle", _NULL)
        has_entry = handle in _LOG_BY_HANDLE and handle != _NULL
        log = _LOG_BY_HANDLE.pop(handle) if has_entry else None  # before a new one gets this handle
        try:
            return mpi_method(self, *args, **kwargs)
        finally:
            if has_entry and self:  # it is still there: one that cannot be freed, or an error
                _LOG_BY_HANDLE[handle] = log

    return method


def _make_probing(spec: Probe, name: str, mpi_method: Function) -> Function:
    """Make the method that looks for a message: a wait, if `spec` says so."""

    def method(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Probe with a status, and count the message if the probe takes it out of the queue."""
        arguments = dict(zip(spec.parameters, args, strict=False)) | kwargs
        log = _log_of(arguments.get("comm", owner))  # the owner is a communicator, or MPI.Message
        if log is None:
            return mpi_method(owner, *args, **kwargs)
        args, kwargs, status = _with_status(spec.parameters, args, kwargs)
        with span_of(name, "wait" if spec.is_blocking else None):
            message = mpi_method(owner, *args, **kwargs)
        if isinstance(message, MPI.Message):
            _claim(log, message, status)
        return message

    return method


@guarded
def _claim(log: CommLog, message: MPI.Message, status: MPI.Status) -> None:
    """Count a message where it is taken out of the queue, which may be in another order."""
    if status.source != MPI.PROC_NULL:
        _CLAIMS.put(message, (log, log.claim_message(status)))


def _make_receiving(_row: None, name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        flight = _begin_claimed(_CLAIMS.pop(self), name)
        if name[0] in "Ii" or flight is None:
            return _issue(flight, mpi_method, self, args, kwargs)
        with flight.open_tokens[0]:
            return mpi_method(self, *args, **kwargs)

    return method


def _with_status(
    parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], MPI.Status]:
    """Return (args, kwargs, status) with a status among the arguments: the program's, or a new one."""
    status_index = parameters.index("status")
    program_status = args[status_index] if len(args) > status_index else kwargs.get("status")
    status = MPI.Status() if program_status is None else program_status
    if len(args) > status_index:
        return (*args[:status_index], status, *args[status_index + 1 :]), kwargs, status
    return args, kwargs | {"status": status}, status


@guarded
def _begin_collective(
    log: CommLog | None, name: str, spec: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if log is None:
        return None
    return log.begin_collective(name, spec, dict(zip(spec.parameters, args, strict=False)) | kwargs)


def _begin_flight(
    log: CommLog | None, name: str, spec: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Flight | None:
    token = _begin_collective(log, name, spec, args, kwargs)
    return None if token is None else Flight([token])


@guarded
def _begin_messages(
    log: CommLog | None,
    name: str,
    spec: PointToPoint,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flight | None:
    if log is None:
        return None
    return log.begin_messages(name, spec, dict(zip(spec.parameters, args, strict=False)) | kwargs)


@guarded
def _begin_claimed(claimed: tuple[CommLog, Claim] | None, name: str) -> Flight | None:
    return None if claimed is None else claimed[0].begin_claimed(name, claimed[1])
