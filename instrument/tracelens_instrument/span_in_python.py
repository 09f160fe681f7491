"""Spans in Python: handles that are made once and used many times.

Where the recorder in C serves, these do what is unusual (see `_native.c`). The methods that run inside
training (those of `with`, `begin`, `end`) are written flat: every call and every attribute
that they do without is time that the training keeps.
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
from tracelens_instrument.arguments import is_true
from tracelens_instrument.clock import now
from tracelens_instrument.failures import contain, let_through
from tracelens_instrument.lifecycle import first_use
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.repair import write_what_fits
from tracelens_instrument.state import OPEN, OPEN_WITH_BYTES, STATE
from tracelens_instrument.token_in_python import NOTHING, Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict, Unpack

    from tracelens.schema.side import Definition
    from tracelens_instrument.state import Here
else:

    class TypedDict:
        """What a class body needs of it."""

        def __init_subclass__(cls, **_: object) -> None:
            """Take what a TypedDict is told."""


__all__ = ["Span", "Token", "Values", "reduced"]

_write_open = OPEN.pack_into
_write_open_with_bytes = OPEN_WITH_BYTES.pack_into
_write = RECORD.pack_into
_write_flags = struct.Struct("@H").pack_into
_FLAGS_OFFSET = 58


class Values(TypedDict, total=False):
    """What may be said of one use of a span; see docs/format.md for what each means."""

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
    """Says how to enter and leave handles, to those who ask the class (`contextlib.ExitStack`)."""

    __enter__ = property(lambda _: _enter)
    __exit__ = property(lambda _: _leave)


class Span(metaclass=_Handle):
    """A kind of work, named once: ``with SPAN:`` or ``with SPAN(nbytes=n):`` records a piece of it.

    May be used by all threads, inside itself, and in signal handlers. Where coroutines of one thread
    use a handle in turns, use ``with SPAN():``, which keeps its state apart from the thread's.

    A handle holds the functions that `with` calls, made once: binding methods takes half the time of
    a `with`.
    """

    __slots__ = ("__enter__", "__exit__", "definition")

    def __init__(self, definition: int) -> None:
        self.definition = definition
        self.__enter__: Callable[[], Span] = _entering(self, definition)
        self.__exit__: Callable[..., None] = _leaving(self)

    def __reduce__(self) -> tuple[Callable[[Definition], Span], tuple[Definition]]:
        """Let a handle be copied, and sent to a process where other numbers stand for the same."""
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
    ) -> Token:
        """Begin a span now, on this thread or on `track`; what is returned ends it."""
        try:
            segment = STATE.segment
            if segment is None and (STATE.waiting is None or (segment := first_use()) is None):
                return NOTHING
            try:
                word, offset = next(segment.slots)
            except StopIteration:
                segment, (word, offset) = segment.owner.rotate(segment)
            try:
                here = STATE.local.here
            except AttributeError:
                here = segment.owner.arrive()
            start = now()
            try:
                # The fields and their order are those of tracelens.schema.record.
                if (
                    seq is None and bucket is None and peer is None and key is None
                    and request is None and queue_depth is None and micro_step is None
                    and step is None and track is None
                ):  # fmt: skip
                    _write_open_with_bytes(
                        segment.memory,
                        offset,
                        start,
                        nbytes,
                        STATE.blank_beside_bytes,
                        here.block,
                        self.definition,
                    )
                else:
                    _write(segment.memory, offset, start, 0, nbytes,
                           NO_REQUEST if request is None else request,
                           NO_SEQ if seq is None else seq,
                           STATE.step if step is None else step,
                           NO_INDEX if key is None else key,
                           NO_INDEX if bucket is None else bucket,
                           NO_INDEX if peer is None else peer,
                           here.index if track is None else track,
                           NO_SHORT if micro_step is None else micro_step,
                           NO_SHORT if queue_depth is None else queue_depth,
                           0, self.definition)  # fmt: skip
            except Exception as error:  # noqa: BLE001 - training code hands in anything
                let_through(error)
                number = STATE.step if step is None else step
                row = here.index if track is None else track
                values = (
                    nbytes, request, seq, number, key, bucket, peer, row, micro_step, queue_depth
                )  # fmt: skip
                write_what_fits(segment, offset, start, values, self.definition)
            token = Token()
            token.segment = segment
            token.word = word
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
        """Record a span that is over, by times of the monotonic clock."""
        token = self.begin(track, **values)
        segment = token.segment
        if segment is None:
            return
        if estimated is not False and is_true(estimated):
            _write_flags(segment.memory, 8 * token.word + _FLAGS_OFFSET, ESTIMATED)
        try:
            segment.ends[token.word - 1] = start_ns
            segment.ends[token.word] = -end_ns if is_true(failed) else end_ns
        except Exception as error:  # noqa: BLE001 - times are what training code hands in
            let_through(error)
            token.discard()
            segment.owner.count_unusable_time()


def _entering(span: Span, definition: int) -> Callable[[], Span]:
    """Return what `with span:` calls first."""

    def enter() -> Span:
        try:  # as `begin` does it, line by line: calls would cost more than all of them
            segment = STATE.segment
            if segment is None and (STATE.waiting is None or (segment := first_use()) is None):
                return span
            try:
                word, offset = next(segment.slots)
            except StopIteration:
                segment, (word, offset) = segment.owner.rotate(segment)
            try:
                here = STATE.local.here
            except AttributeError:
                here = segment.owner.arrive()
            here.top = (span, segment, word, here.top)
            _write_open(segment.memory, offset, now(), STATE.blank, here.block, definition)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)
        return span

    return enter


def _leaving(span: Span) -> Callable[..., None]:
    """Return what `with span:` calls last."""

    def leave(kind: type[BaseException] | None, _error: object, _traceback: object) -> None:
        try:
            if STATE.segment is None:
                return
            end = now()
            try:
                here = STATE.local.here
                entered, segment, word, below = here.top
            except (AttributeError, TypeError):
                return  # it was entered before recording began
            if entered is span:
                here.top = below
                segment.ends[word] = end if kind is None else -end
            else:
                _leave_below(here, span, end if kind is None else -end)
        except Exception as failure:  # noqa: BLE001 - the border to the user's training code
            contain(failure)

    return leave


def _enter(span: Span) -> Span:
    return span.__enter__()


def _leave(span: Span, *what: object) -> None:
    span.__exit__(*what)


def reduced(definition: int) -> tuple[Callable[[Definition], Span], tuple[Definition]]:
    """Return what makes the same handle again, also in a process with the other recorder."""
    return _same_span, (REGISTRY.lookup(definition),)


def _same_span(row: Definition) -> Span:
    # That module imports this one, and knows which recorder is in use.
    from tracelens_instrument import span  # noqa: PLC0415 - see the line above

    return span.Span(REGISTRY.number(row))


def _leave_below(here: Here, span: Span, end: int) -> None:
    """Close the latest use of `span` where uses did not nest, and take it out."""
    above = []
    entry = here.top
    while entry is not None and entry[0] is not span:
        above.append(entry)
        entry = entry[3]
    if entry is None:
        return
    _, segment, word, top = entry
    for entered, its_segment, its_word, _ in reversed(above):
        top = (entered, its_segment, its_word, top)
    here.top = top
    segment.ends[word] = end
