"""Functions in the place of methods of requests, which record waiting, and what completes.

What a non-blocking call has under way (`FLIGHT_BY_REQUEST`) belongs to the request that it
returned, for as long as the program holds that, and ends when any of MPI's ways shows the program
that it is complete. A table says of the methods for several requests which of them are complete
when they return. Waiting for any of them is a span of the thread, and so is a loop of tests until
one says "complete", if they follow each other so soon that nothing else can be done in between.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from mpi4py import MPI

from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now
from tracelens_instrument.hooks.base import attempt, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from tracelens_instrument.core.spans import Span
    from tracelens_instrument.hooks.mpi.log import Flight
    from tracelens_instrument.hooks.mpi.replaced import Function, Replaced

__all__ = [
    "BEGIN_BY_REQUEST",
    "COMPLETIONS",
    "FLIGHT_BY_REQUEST",
    "ByObject",
    "Completion",
    "replace",
    "span_of",
]
T = TypeVar("T")
_NO_SPAN: Final = nullcontext()
_LOOP_PAUSE_NS: Final = 1_000_000  # tests that follow each other no later are a loop that waits


class ByObject(Generic[T]):
    """What belongs to objects that can neither be hashed nor be given attributes, while they live."""

    def __init__(self) -> None:
        self._reference_and_value_by_id: dict[int, tuple[ref[Any], T]] = {}

    def put(self, owner: object, value: T) -> None:
        """Let a value belong to an object."""
        key, known = id(owner), self._reference_and_value_by_id
        known[key] = ref(owner, lambda _: known.pop(key, None)), value

    def get(self, owner: object) -> T | None:
        """Return the value that belongs to an object, or None."""
        found = self._reference_and_value_by_id.get(id(owner))
        return None if found is None else found[1]

    def pop(self, owner: object) -> T | None:
        """Remove and return the value that belongs to an object, or None."""
        found = self._reference_and_value_by_id.pop(id(owner), None)
        return None if found is None else found[1]

    def clear(self) -> None:
        """Forget all."""
        self._reference_and_value_by_id.clear()


FLIGHT_BY_REQUEST: Final[ByObject[Flight]] = ByObject()
BEGIN_BY_REQUEST: Final[ByObject[Callable[[], Flight | None]]] = (
    ByObject()
)  # of persistent requests


def span_of(name: str, kind: str | None) -> AbstractContextManager[object]:
    """Return the span of a method that belongs to no communicator; None: it is not recorded."""
    return (kind and attempt(_span_of, name, kind)) or _NO_SPAN


@functools.cache
def _span_of(name: str, kind: str) -> Span:
    return recorder.span(name, kind=kind, op="request_wait" if kind == "wait" else None)


@guarded
def _note_test(flights: Sequence[Flight], *, is_complete: bool) -> None:
    """Note a test of requests, which have these flights; a loop of tests is recorded as waiting.

    It is over when a request is complete, or when the next test comes too late to belong to it.
    """
    moment_ns = now()
    last_flight = max(flights, key=lambda flight: flight.last_test_ns)
    tests_since_ns, last_test_ns = last_flight.first_test_ns, last_flight.last_test_ns
    is_new_loop = moment_ns - last_test_ns > _LOOP_PAUSE_NS
    loop_end_ns = last_test_ns if is_new_loop else moment_ns
    if (is_complete or is_new_loop) and tests_since_ns < loop_end_ns:
        _span_of("polling", "wait").complete(tests_since_ns, loop_end_ns)
    for flight in flights:
        flight.first_test_ns = moment_ns if is_complete or is_new_loop else tests_since_ns
        flight.last_test_ns = moment_ns


@dataclass(frozen=True)
class Completion:
    """A class method: `list_completed` picks the indices of complete requests from what it returned.

    `returns_packed_statuses`: the statuses are those of the complete ones only.
    `fails_all_requests`: an exception concerns all requests.
    """

    list_completed: Callable[[Any, int], Iterable[int]]
    status_argument: str = "statuses"
    returns_packed_statuses: bool = False
    fails_all_requests: bool = False

    def make_statuses(self) -> Any:
        """Return the status objects into which MPI writes."""
        return [] if self.status_argument == "statuses" else MPI.Status()

    @guarded
    def finish(self, result: Any, requests: Sequence[MPI.Request], statuses: Any) -> None:
        """End what the complete requests had under way."""
        for position, index in enumerate(self.list_completed(result, len(requests))):
            status_index = position if self.returns_packed_statuses else index
            _end(requests[index], self._status(statuses, status_index))

    @guarded
    def fail(self, requests: Sequence[MPI.Request]) -> None:
        """End, as failed, what all the requests had under way."""
        for request in requests if self.fails_all_requests else ():
            _end(request, failed=True)

    def _status(self, statuses: Any, index: int) -> MPI.Status | None:
        if isinstance(statuses, list):
            return statuses[index] if index < len(statuses) else None
        return statuses if isinstance(statuses, MPI.Status) else None


def _end(request: Any, status: MPI.Status | None = None, *, failed: bool = False) -> None:
    flight = FLIGHT_BY_REQUEST.pop(request)
    if flight is not None:
        flight.end(status, failed)


def _list_all(_result: Any, count: int) -> Iterable[int]:
    return range(count)


def _list_all_if(flag: bool, count: int) -> Iterable[int]:  # noqa: FBT001 - what MPI returns
    return range(count) if flag else ()


def _list_one(index: int, count: int) -> Iterable[int]:
    return (index,) if 0 <= index < count else ()  # UNDEFINED is negative


def _list_one_if(result: tuple[Any, ...], count: int) -> Iterable[int]:
    return _list_one(result[0], count) if result[1] else ()


def _list_some(indices: list[int] | None, _count: int) -> Iterable[int]:
    return indices or ()


def _by_first_result(
    list_completed: Callable[[Any, int], Iterable[int]],
) -> Callable[[Any, int], Iterable[int]]:
    return lambda result, count: list_completed(result[0], count)


COMPLETIONS: Final[dict[str, Completion]] = {
    "Waitall": Completion(_list_all, fails_all_requests=True),
    "waitall": Completion(_list_all, fails_all_requests=True),
    "Testall": Completion(_list_all_if, fails_all_requests=True),
    "testall": Completion(_by_first_result(_list_all_if), fails_all_requests=True),
    "Waitany": Completion(_list_one, status_argument="status"),
    "waitany": Completion(_by_first_result(_list_one), status_argument="status"),
    "Testany": Completion(_list_one_if, status_argument="status"),
    "testany": Completion(_list_one_if, status_argument="status"),
    "Waitsome": Completion(_list_some, returns_packed_statuses=True),
    "waitsome": Completion(_by_first_result(_list_some), returns_packed_statuses=True),
    "Testsome": Completion(_list_some, returns_packed_statuses=True),
    "testsome": Completion(_by_first_result(_list_some), returns_packed_statuses=True),
}
_SINGLE: Final[dict[str, Callable[[Any], bool]]] = {  # whether what they return says "complete"
    "Wait": lambda _: True,
    "wait": lambda _: True,
    "Test": bool,
    "test": lambda result: bool(result[0]),
}


def replace(replaced: Replaced) -> None:
    """Put functions that record in the place of the methods of requests."""
    replaced.replace(
        (MPI.Request, MPI.Prequest, MPI.Grequest),
        dict.fromkeys(_SINGLE, _make_completing)
        | dict.fromkeys(COMPLETIONS, _make_completing_several)
        | dict.fromkeys(("Cancel", "cancel"), _make_cancelling)
        | dict.fromkeys(("Free", "free"), _make_freeing),
    )
    replaced.replace([MPI.Prequest], {"Start": _make_starting, "Startall": _make_starting_all})


def _span_kind(name: str) -> str | None:
    return "wait" if name[0] in "Ww" else None


def _make_completing(name: str, mpi_method: Function) -> Function:
    """Make a request's method that waits or tests, and ends what it had in flight when complete."""
    says_complete, kind = _SINGLE[name], _span_kind(name)  # kind: "wait", None if it only tests

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Wait or test: in a span of `kind`, None without, and with a status if the end needs one."""
        flight = FLIGHT_BY_REQUEST.get(
            self
        )  # the open spans of the call that returned this request
        if flight is None:
            return mpi_method(self, *args, **kwargs)
        status = args[0] if args else kwargs.get("status")
        if status is None and flight.needs_status:
            status, kwargs = MPI.Status(), {}
            args = (status,)
        with span_of(name, kind):
            try:
                result = mpi_method(self, *args, **kwargs)
            except BaseException:
                _end(self, status, failed=True)
                raise
            is_complete = says_complete(result)
            if kind is None:
                _note_test([flight], is_complete=is_complete)
            if is_complete:
                _end(self, status)
        return result

    return method


def _make_completing_several(name: str, mpi_method: Function) -> Function:
    """Make the method for several requests; `completion` says which are complete then."""
    completion, kind = COMPLETIONS[name], _span_kind(name)  # kind: "wait", None if it only tests

    def method(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        """Wait or test: in a span of `kind`, None without, and with statuses if an end needs them."""
        requests: Any = args[0] if args else kwargs.get("requests")
        flights = _find_flights(requests)  # the open spans of the calls that returned them
        if not flights:
            return mpi_method(cls, *args, **kwargs)
        statuses = args[1] if len(args) > 1 else kwargs.get(completion.status_argument)
        if statuses is None and any(flight.needs_status for flight in flights):
            statuses = completion.make_statuses()
            args, kwargs = (requests, statuses), {}
        with span_of(name, kind):
            try:
                result = mpi_method(cls, *args, **kwargs)
            except BaseException:
                completion.fail(requests)
                raise
            if kind is None:
                has_completed = any(True for _ in completion.list_completed(result, len(requests)))
                _note_test(flights, is_complete=has_completed)
            completion.finish(result, requests, statuses)
        return result

    return method


def _find_flights(requests: Any) -> list[Flight]:
    """Return the flights of requests; skip objects that are no MPI requests."""
    if not hasattr(requests, "__len__"):
        return []
    return [flight for flight in map(FLIGHT_BY_REQUEST.get, requests) if flight is not None]


def _make_cancelling(_name: str, mpi_method: Function) -> Function:
    """Make the method that cancels a request; the spans it has under way may never end then."""

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = mpi_method(self, *args, **kwargs)
        flight = FLIGHT_BY_REQUEST.get(self)
        if flight is not None:
            flight.cancel()
        return result

    return method


def _make_freeing(_name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = mpi_method(self, *args, **kwargs)
        BEGIN_BY_REQUEST.pop(self)
        _end(self)  # the last moment at which anybody can say something of it
        return result

    return method


def _make_starting(_name: str, mpi_method: Function) -> Function:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        _start([self])
        try:
            return mpi_method(self, *args, **kwargs)
        except BaseException:
            _end(self, failed=True)
            raise

    return method


def _make_starting_all(_name: str, mpi_method: Function) -> Function:
    """Make the method that starts several persistent requests, and records their operations."""

    def method(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        """Start persistent requests, whose operations have begun then, or failed."""
        argument: Any = args[0] if args else kwargs.get("requests")
        requests = list(argument) if hasattr(argument, "__len__") else []
        _start(requests)
        try:
            return mpi_method(cls, *args, **kwargs)
        except BaseException:
            for request in requests:
                _end(request, failed=True)
            raise

    return method


@guarded
def _start(requests: Sequence[Any]) -> None:
    """Begin the operations of persistent requests."""
    for request in requests:
        begin = BEGIN_BY_REQUEST.get(request)
        flight = None if begin is None else begin()
        if flight is not None:
            FLIGHT_BY_REQUEST.put(request, flight)
