"""The recorder's functions: what training code calls through `tracelens`, and what hooks call.

Nothing here raises into training code, except for a handle that is made wrongly, which is a mistake
in the program and shows when it is imported.
"""

from __future__ import annotations

from tracelens.errors import InvalidArgument
from tracelens.schema.record import NO_INDEX
from tracelens.schema.side import MAX_NAME
from tracelens.schema.vocabulary import KINDS
from tracelens_instrument import lifecycle
from tracelens_instrument.core import arguments, steps
from tracelens_instrument.core.backend import NATIVE, backend
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import contained, warn_once
from tracelens_instrument.core.registry import LAST_THREAD, MOST_NAMES, REGISTRY
from tracelens_instrument.core.spans import Span, Token, Values, span_of
from tracelens_instrument.core.state import STATE
from tracelens_instrument.core.steps import Step, begin_step, end_step, put_counter
from tracelens_instrument.lifecycle import on_start, on_stop
from tracelens_instrument.retention.policy import checked_detail, read_retention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

    from tracelens.schema.side import ClockReading
    from tracelens_instrument.device.spans import DeviceSpan

    F = TypeVar("F", bound=Callable[..., Any])

    class Constants(TypedDict, total=False):
        """What is the same in all uses of a handle."""

        kind: str
        op: str | None
        algorithm: str | None
        communicator: int | None
        shard: int | None


__all__ = [
    "Span",
    "Step",
    "Token",
    "active",
    "backend",
    "begin_step",
    "clock_reading",
    "communicator",
    "counter",
    "detail",
    "end_step",
    "identify",
    "instant",
    "keep",
    "now",
    "on_start",
    "on_stop",
    "span",
    "start",
    "step",
    "stop",
    "traced",
    "track",
]

_handles: dict[tuple[str, str, str], Span] = {}
_definitions: dict[tuple[str, str, str | None], int] = {}  # of spans that only have these


def start(
    directory: str | Path | None = None,
    *,
    role: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    local_rank: int | None = None,
    job: str | None = None,
    shard: int | None = None,
    keep: str | None = None,
    budget: int | str | None = None,
    detail: str | None = None,
) -> None:
    """Record from now on, into `directory`.

    Args:
        directory: The trace folder, common to all ranks; default: `TRACELENS_DIR`, else
            ``traces/<UTC time>``.
        role: ``worker`` or ``ps``.
        rank: Global rank; it, `world` and `local_rank` are otherwise taken from torchrun, MPI or
            Slurm.
        world: Number of ranks.
        local_rank: Rank on this host.
        job: What tells this job from others; equal in all its ranks.
        shard: Parameter-server shard that this process serves.
        keep: ``all``, ``last:N`` steps, or ``every:N:BURST``, the detail of BURST steps out of N;
            default: `TRACELENS_KEEP`, else all.
        budget: Bytes this process may have on disk, a number or a text such as ``4GB``; default:
            `TRACELENS_BUDGET`, else no limit.
        detail: How closely framework hooks look: ``step``, ``phase``, ``layer`` or ``op``; default:
            `TRACELENS_DETAIL`, else ``phase``. Spans of your own are recorded at any detail.

    Raises:
        InvalidArgument: a directory, role, number, keep, budget or detail that cannot be.
    """
    identity_values: dict[str, Any] = {
        "role": arguments.role(role),
        "rank": arguments.index("rank", rank),
        "world": arguments.index("world", world),
        "local_rank": arguments.index("local_rank", local_rank),
        "shard": arguments.index("shard", shard),
        "job": None if job is None else arguments.any_text(job),
    }
    rank, world = identity_values["rank"], identity_values["world"]
    if rank is not None and world is not None and rank >= world:
        raise InvalidArgument(f"rank is {rank} in a world of {world}, expected one below it.")
    lifecycle.begin(
        arguments.path("directory", directory),
        identity_values,
        read_retention(keep, budget, detail),
    )


def stop() -> None:
    """End the recording, and return when its Arrow file exists.

    A long recording has been written for the most part already. The end of the process ends the
    recording, too, but waits for no more than three seconds: what is left then is written by a process
    that goes on, or by the next reader. Where the file cannot be written a warning says so, and
    the events stay readable in their segments.
    """
    lifecycle.end(wait=True)
    steps.forget_steps()


def keep() -> None:
    """Keep the present steps permanently, if only the last ones are kept (``keep="last:N"``).

    The last steps go on being kept, too. It takes effect when the step ends.
    `TRACELENS_KEEP_SIGNAL`, for example ``USR1``, names a signal that does the same.
    Whoever touches ``keep.request`` in the trace folder asks all its ranks to.
    """
    lifecycle.keep()


if TYPE_CHECKING:

    @overload
    def span(
        name: str, *, device: Literal[False] = False, **constants: Unpack[Constants]
    ) -> Span: ...
    @overload
    def span(name: str, *, device: Literal[True], **constants: Unpack[Constants]) -> DeviceSpan: ...


def span(
    name: str,
    *,
    kind: str = "user",
    op: str | None = None,
    algorithm: str | None = None,
    communicator: int | None = None,
    shard: int | None = None,
    device: bool = False,
) -> Span | DeviceSpan:
    """Make a handle for a kind of work: once, to be used many times.

    Args:
        name: What it is called.
        kind: Its category, one of `tracelens.schema.vocabulary.KINDS`.
        op: The operation, for the kinds reduction, ps and elastic.
        algorithm: How a collective is carried out: ring, tree, ...
        communicator: The group that acts, from `tracelens_instrument.recorder.communicator`.
        shard: Parameter-server shard.
        device: Whether to time its work on the device (CUDA), too. Without a device it is an ordinary
            span.

    Raises:
        InvalidArgument: an unknown kind, an operation that this kind does not have, or a name or
            number that is invalid.
    """
    plain = (
        type(name) is str
        and type(kind) is str
        and (op is None or type(op) is str)
        and algorithm is None
        and communicator is None
        and shard is None
    )
    if plain and device is False:
        known = _definitions.get((name, kind, op))
        if known is not None:
            return span_of(known)
    name = arguments.text("name of a span", name)
    kind, op = arguments.checked_kind(kind, op)
    if algorithm is not None:
        algorithm = arguments.text("algorithm of a span", algorithm)[:MAX_NAME]
    communicator = arguments.index("communicator", communicator, NO_INDEX)
    if communicator == NO_INDEX:  # there were too many
        communicator = None
    shard = arguments.index("shard", shard)
    number = REGISTRY.definition_id(
        name, kind, op=op, algorithm=algorithm, communicator=communicator, shard=shard
    )
    if plain and REGISTRY.definition_of(number).name == name:  # not one of too many names
        _definitions[name, kind, op] = number
    return _on_device(Span(number)) if arguments.is_true(device) else Span(number)


def _on_device(handle: Span) -> DeviceSpan:
    from tracelens_instrument.device.spans import DeviceSpan  # noqa: PLC0415 - few programs have one

    return DeviceSpan(handle)


if TYPE_CHECKING:

    @overload
    def traced(name: F) -> F: ...
    @overload
    def traced(
        name: str | None = None, *, kind: str = "user", op: str | None = None
    ) -> Callable[[F], F]: ...


def traced(name: Any = None, *, kind: str = "user", op: str | None = None) -> Any:
    """Record a span around every call of a function: ``@tl.traced``, ``@tl.traced("forward")``.

    While nothing records, and nothing is going to (`TRACELENS_DIR`), the function itself is returned:
    call `start` before the functions are defined. So it is with what is no function: a class, or an
    object that can be called.

    Raises:
        InvalidArgument: an unknown kind, an operation that this kind does not have, or what cannot be
            called.
    """
    from tracelens_instrument.traced import decorated  # noqa: PLC0415 - it loads what takes a while

    label = None if name is None or not isinstance(name, str) else arguments.text("name", name)
    kind, op = arguments.checked_kind(kind, op)

    def decorate(function: F) -> F:
        return decorated(function, label, lambda called: span(called, kind=kind, op=op))

    return decorate if name is None or label is not None else decorate(name)


def step(number: int, samples: float | None = None, tokens: float | None = None) -> Step:
    """One training step, around its whole body: ``with tl.step(i, samples=len(batch)):``.

    Everything recorded inside, by any thread, carries its number. `samples` and `tokens` are the
    work done in it: throughput, and whether ranks had the same work, come from them.
    """
    return Step(number, samples, tokens)


if not TYPE_CHECKING and NATIVE:
    from tracelens_instrument._native import step


def instant(name: str, kind: str = "user", **values: Unpack[Values]) -> None:
    """Record that something happened at this moment; `values` are those of a span."""
    if not values.keys() <= Values.__annotations__.keys():
        raise TypeError(f"instant() takes the values {', '.join(Values.__annotations__)}")
    if STATE.is_on:
        _put_instant(name, kind, values)


def counter(name: str, value: float, kind: str = "user") -> None:
    """Record the value of something at this moment."""
    if STATE.is_on:
        _put_counter(name, kind, value)


def active() -> bool:
    """Return True if events are recorded, now or from the first one on."""
    return STATE.is_on


def communicator(ranks: Sequence[int], name: str) -> int:
    """Number a group of global ranks, for ``span(communicator=...)``.

    Called once per group, in the same order by all members: its identity across processes is the
    job, the name, the ranks, and the number of such groups so far. -1 means no group: there are too
    many, or these are no ranks.
    """
    number = contained(REGISTRY.communicator)(ranks, arguments.any_text(name))
    return NO_INDEX if number is None else number


def track(name: str) -> int:
    """Number a track for operations in flight, which may overlap."""
    number = contained(REGISTRY.track)(arguments.any_text(name))
    return LAST_THREAD if number is None else number


def detail(asked: str | None = None) -> str:
    """Return the detail of a hook: `asked` if given, or else that of the recording.

    Raises:
        InvalidArgument: no such detail.
    """
    if asked is None:
        return lifecycle.detail()
    level = checked_detail(asked)
    lifecycle.note_detail(level)
    return level


@contained
def identify(rank: int, world: int, local_rank: int | None = None) -> None:
    """Set the rank that a framework knows, if no launcher has said it."""
    index = arguments.index
    lifecycle.learn_identity(
        index("rank", rank), index("world", world), index("local_rank", local_rank)
    )


@contained
def clock_reading(reading: ClockReading) -> None:
    """Write down how this process's clock stands to another's."""
    if STATE.recording is not None:
        STATE.recording.write_clock_reading(reading)


@contained
def _put_instant(name: object, kind: object, values: Values) -> None:
    _handle(name, kind, "instant").begin(**values)


@contained
def _put_counter(name: object, kind: object, value: object) -> None:
    put_counter(_handle(name, kind, "counter"), value)


def _handle(name: object, kind: object, event_type: str) -> Span:
    """Return the handle of an instant or counter; a wrong kind costs the kind, not the training."""
    key = (arguments.any_text(name)[:MAX_NAME], arguments.any_text(kind), event_type)
    known = _handles.get(key)
    return _new_handle(key) if known is None else known


def _new_handle(key: tuple[str, str, str]) -> Span:
    """Make the handle of an instant or counter, and keep it for later uses under (name, kind, type)."""
    name, kind, event_type = key
    if kind not in KINDS:
        warn_once(
            f"kind is {kind!r}, expected one of {', '.join(KINDS)}: recorded as 'user'", "kind"
        )
        kind = "user"
    handle = Span(REGISTRY.definition_id(name, kind, event_type))
    if len(_handles) < MOST_NAMES:
        _handles[key] = handle
    return handle


lifecycle.wait_for_first_use()
