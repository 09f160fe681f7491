"""Spans: handles that are made once and used many times, and the tokens that end them.

`Span` and `Token` are those in C (`_native.c`) where that part serves, else `PythonSpan` and
`PythonToken`, which do what is unusual in either case: the slow path. The methods that run inside
training (those of `with`, `begin`, `end`) are written flat: every call and every attribute that they
do without is time that the training keeps.
"""

from __future__ import annotations

import struct

from tracelens.schema.record import (
    ESTIMATED,
    NO_BYTES,
    NO_INDEX,
    NO_REQUEST,
    NO_SEQ,
    NO_SHORT,
    RECORD,
)
from tracelens_instrument.core.arguments import is_true, write_what_fits
from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import contain, reraise_if_handlers
from tracelens_instrument.core.registry import REGISTRY
from tracelens_instrument.core.state import OPEN, OPEN_WITH_BYTES, STATE

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Final, Protocol, Self

    from tracelens_instrument.core.state import OpenSegment

    class Future(Protocol):
        """What is asked of a future, such as PyTorch's."""

        def value(self) -> object:
            """Return its value, or raise its error."""

    class Ends(Protocol):
        """A token, as far as it ends."""

        def end(self, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - as tokens have it
            """Close the span."""


__all__ = [
    "NOTHING",
    "Future",
    "PythonSpan",
    "PythonToken",
    "Span",
    "Token",
    "Values",
    "end_by",
    "reduced",
    "span_of",
]

_write_definition = struct.Struct("@I").pack_into
_DEFINITION_OFFSET = 60
_UNUSED = 0


class PythonToken:
    """A span that has begun; `end` closes it, in any thread, and so does leaving it as a context."""

    __slots__ = ("end_index", "segment")

    segment: OpenSegment | None
    end_index: int  # of the end, in `segment.ends`; the start is in the word before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, _error: object, _traceback: object
    ) -> None:
        try:
            segment = self.segment
            if segment is not None:
                end_ns = now()
                self.segment = None
                # An end below zero says that the span failed.
                segment.ends[self.end_index] = end_ns if exception_type is None else -end_ns
        except Exception as failure:  # noqa: BLE001 - the border to the user's training code
            contain(failure)

    def end(self, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - keywords cost time here
        """Close the span, as failed if it ended by an exception; a second time does nothing."""
        try:
            segment = self.segment
            if segment is not None:
                end_ns = now()
                self.segment = None
                if failed is not False and is_true(failed):
                    end_ns = -end_ns  # says that the span failed
                segment.ends[self.end_index] = end_ns
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)

    def completed(self, future: Future) -> None:
        """Close the span, as failed if `future` holds an error; a callback for it."""
        end_by(future, self)

    def discard(self) -> None:
        """Remove the span as if it had not begun."""
        segment, self.segment = self.segment, None
        if segment is not None:
            _write_definition(segment.memory, 8 * self.end_index + _DEFINITION_OFFSET, _UNUSED)


def end_by(future: Future, token: Ends) -> None:
    """Close the span of `token`, as failed if `future`, which is done, holds an error."""
    try:
        future.value()
    except Exception:  # noqa: BLE001 - PyTorch raises it where the program waits
        token.end(failed=True)
    else:
        token.end()


NOTHING: Final = PythonToken()
NOTHING.segment = None
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict, Unpack

    from tracelens.schema.side import Definition
    from tracelens_instrument.core.state import ThreadState
else:

    class TypedDict:
        """What a class body needs of it."""

        def __init_subclass__(cls, **_: object) -> None:
            """Accept the arguments of a TypedDict's class statement."""


_write_open = OPEN.pack_into
_write_open_with_bytes = OPEN_WITH_BYTES.pack_into
_write = RECORD.pack_into
_write_flags = struct.Struct("@H").pack_into
_FLAGS_OFFSET = 58


class Values(TypedDict, total=False):
    """Values that one use of a span may carry; see docs/format.md for what each means."""

    nbytes: int
    seq: int
    bucket: int
    peer: int
    key: int
    request: int
    queue_depth: int
    micro_step: int
    step: int | None


class _Handle(type):
    """Has what callers look up in the class of a handle (`contextlib.ExitStack`)."""

    __enter__ = property(lambda _: _enter)
    __exit__ = property(lambda _: _leave)


class PythonSpan(metaclass=_Handle):
    """A kind of work, named once: ``with SPAN:`` or ``with SPAN(nbytes=n):`` records a piece of it.

    May be used by all threads, inside itself, and in signal handlers. Where coroutines of one thread
    use a handle alternately, use ``with SPAN():``, which keeps its state apart from the thread's.

    A handle holds the functions that `with` calls, made once: binding methods takes half the time of
    a `with`.
    """

    __slots__ = ("__enter__", "__exit__", "definition")

    def __init__(self, definition: int) -> None:
        self.definition = definition
        self.__enter__: Callable[[], PythonSpan] = _entering(self, definition)
        self.__exit__: Callable[..., None] = _leaving(self)

    def __reduce__(self) -> tuple[Callable[[Definition], PythonSpan], tuple[Definition]]:
        """Make a handle that can be copied and pickled: the numbers differ between processes."""
        return reduced(self.definition)

    # Positional, although they are meant as keywords: Python fills in the defaults of keyword-only
    # arguments one by one, which costs 80 ns a span.
    def begin(  # noqa: PLR0917 - see above
        self,
        track: int | None = None,
        nbytes: int = NO_BYTES,
        seq: int | None = None,
        bucket: int | None = None,
        peer: int | None = None,
        key: int | None = None,
        request: int | None = None,
        queue_depth: int | None = None,
        micro_step: int | None = None,
        step: int | None = None,
    ) -> PythonToken:
        """Begin a span now, on this thread or on `track`; what is returned ends it."""
        try:
            segment = STATE.segment
            if segment is None and (
                (waiting := STATE.waiting) is None or (segment := waiting.open_recording()) is None
            ):
                return NOTHING
            try:
                end_index, byte_offset = next(segment.slots)
            except StopIteration:
                segment, (end_index, byte_offset) = segment.recording.reserve_slot_after(segment)
            try:
                thread = STATE.local.thread_state
            except AttributeError:
                thread = segment.recording.register_thread()
            start_ns = now()
            try:
                # The fields and their order are those of tracelens.schema.record.
                if (
                    seq is None and bucket is None and peer is None and key is None
                    and request is None and queue_depth is None and micro_step is None
                    and step is None and track is None
                ):  # fmt: skip
                    _write_open_with_bytes(
                        segment.memory,
                        byte_offset,
                        start_ns,
                        nbytes,
                        STATE.blank_beside_bytes,
                        thread.block,
                        self.definition,
                    )
                else:
                    _write(segment.memory, byte_offset, start_ns, 0, nbytes,
                           NO_REQUEST if request is None else request,
                           NO_SEQ if seq is None else seq,
                           STATE.step if step is None else step,
                           NO_INDEX if key is None else key,
                           NO_INDEX if bucket is None else bucket,
                           NO_INDEX if peer is None else peer,
                           thread.index if track is None else track,
                           NO_SHORT if micro_step is None else micro_step,
                           NO_SHORT if queue_depth is None else queue_depth,
                           0, self.definition)  # fmt: skip
            except Exception as error:  # noqa: BLE001 - training code hands in anything
                reraise_if_handlers(error)
                step_number = STATE.step if step is None else step
                track_index = thread.index if track is None else track
                values = (
                    nbytes, request, seq, step_number, key, bucket, peer, track_index, micro_step,
                    queue_depth,
                )  # fmt: skip
                write_what_fits(segment, byte_offset, start_ns, values, self.definition)
            token = PythonToken()
            token.segment = segment
            token.end_index = end_index
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)
            return NOTHING
        return token

    __call__ = begin

    def complete(
        self,
        start_ns: int,
        end_ns: int,
        track: int | None = None,
        *,
        failed: bool = False,
        estimated: bool = False,
        **values: Unpack[Values],
    ) -> None:
        """Record a span that is over, by monotonic times; `track` is a row of the thread table.

        `failed`: an exception ended it; `estimated`: its times were not measured.
        """
        token = self.begin(track, **values)
        segment = token.segment
        if segment is None:
            return
        if estimated is not False and is_true(estimated):
            _write_flags(segment.memory, 8 * token.end_index + _FLAGS_OFFSET, ESTIMATED)
        try:
            segment.ends[token.end_index - 1] = start_ns  # the word before
            segment.ends[token.end_index] = -end_ns if is_true(failed) else end_ns
        except Exception as error:  # noqa: BLE001 - times are what training code hands in
            reraise_if_handlers(error)
            token.discard()
            segment.recording.count_unusable_time()


def _entering(span: PythonSpan, definition_id: int) -> Callable[[], PythonSpan]:
    """Return the function that `with span:` calls first."""

    def enter() -> PythonSpan:
        """Write a record without an end into a free slot of the segment; return the span.

        Before `tl.start` there is no segment; `waiting` is a recording that opens with its first event.
        `end_index` is the 8-byte word of the segment that will hold the end.
        """
        try:  # as `begin` does it, line by line: calls would cost more than all of them
            segment = STATE.segment
            if segment is None and (
                (waiting := STATE.waiting) is None or (segment := waiting.open_recording()) is None
            ):
                return span
            try:
                end_index, byte_offset = next(segment.slots)
            except StopIteration:
                segment, (end_index, byte_offset) = segment.recording.reserve_slot_after(segment)
            try:
                thread = STATE.local.thread_state
            except AttributeError:
                thread = segment.recording.register_thread()
            # The entered span, where its end is to be written, and the use around it.
            thread.latest_use = (span, segment, end_index, thread.latest_use)
            # `blank` has the fields that say nothing, and the step; `block` has the thread's.
            _write_open(
                segment.memory, byte_offset, now(), STATE.blank, thread.block, definition_id
            )
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)
        return span

    return enter


def _leaving(span: PythonSpan) -> Callable[..., None]:
    """Return the function that `with span:` calls last."""

    def leave(
        exception_type: type[BaseException] | None, _error: object, _traceback: object
    ) -> None:
        """Write when `span`, which this thread entered, ends, ns; negative if it failed."""
        try:
            if STATE.segment is None:
                return
            end_ns = now()
            try:
                thread = STATE.local.thread_state
                entered_span, segment, end_index, outer_use = thread.latest_use
            except (AttributeError, TypeError):
                return  # it was entered before recording began
            if entered_span is span:
                thread.latest_use = outer_use
                segment.ends[end_index] = end_ns if exception_type is None else -end_ns
            else:
                _leave_below(thread, span, end_ns if exception_type is None else -end_ns)
        except Exception as failure:  # noqa: BLE001 - the border to the user's training code
            contain(failure)

    return leave


def _enter(span: PythonSpan) -> PythonSpan:
    return span.__enter__()


def _leave(span: PythonSpan, *what: object) -> None:
    span.__exit__(*what)


def reduced(definition_id: int) -> tuple[Callable[[Definition], PythonSpan], tuple[Definition]]:
    """Return the function and arguments that make an equal handle, for pickling."""
    return _same_span, (REGISTRY.definition_of(definition_id),)


def _same_span(row: Definition) -> PythonSpan:
    return Span(REGISTRY.id_of(row))


def _leave_below(thread: ThreadState, span: PythonSpan, end_ns: int) -> None:
    """Close the latest use of `span` where uses did not nest, and take it out of the thread's uses.

    A use is (entered span, segment, index of its end there, the use around it). Failed: `end_ns` < 0.
    """
    inner_uses = []
    use = thread.latest_use
    while use is not None:
        entered, segment, end_index, outer_use = use
        if entered is span:
            break
        inner_uses.append((entered, segment, end_index))
        use = outer_use
    else:
        return  # it was entered before recording began
    for inner_use in reversed(inner_uses):
        outer_use = (*inner_use, outer_use)
    thread.latest_use = outer_use
    segment.ends[end_index] = end_ns


if TYPE_CHECKING or not NATIVE:
    Span = PythonSpan
    Token = PythonToken
else:
    from tracelens_instrument._native import Span, Token, install, span_of

    install(state=STATE, fallback=PythonSpan, reduce=reduced)


if TYPE_CHECKING or not NATIVE:

    def span_of(definition: int) -> Span:
        """Make the handle of a definition."""
        return Span(definition)
