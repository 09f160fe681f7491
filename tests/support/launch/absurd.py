"""Calls everything that the recorder offers with anything, and says what raised that should not.

Run as a program, in a folder where it may write: what is called so leaves traces all over the process.
Its argument is the number of calls of each.
"""

from __future__ import annotations

import itertools
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens_instrument import recorder

if TYPE_CHECKING:
    from collections.abc import Callable

MADE = tl.span("made")
ON_DEVICE = tl.span("on a device", device=True)
FOLDERS = itertools.count()


def fail(*_arguments: object, **_named: object) -> Any:
    raise ZeroDivisionError("a user's object fails")


EVIL = dict.fromkeys(
    (
        *("__str__", "__repr__", "__hash__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__"),
        *("__ge__", "__bool__", "__int__", "__index__", "__float__", "__len__", "__iter__"),
        *("__neg__", "__getitem__", "__contains__", "__fspath__", "__call__", "__format__"),
        *("__enter__", "__exit__", "__reduce_ex__", "__getattr__", "__add__", "__radd__"),
    ),
    fail,
)
Evil, EvilText, EvilNumber, EvilFloat = (
    type("Evil", bases, dict(EVIL)) for bases in ((), (str,), (int,), (float,))
)


class Flag(int):
    """An integer that says it is another."""

    def __index__(self) -> int:
        return 2**70

    __int__ = __index__


class LongText(str):
    """A text that says it is another."""

    __slots__ = ()

    def __str__(self) -> str:
        return LongText("other")


# The default alphabet of `st.text` costs seconds where Hypothesis finds no cache.
keys = st.text(alphabet="ab\0\u00e9\U0001f642", max_size=3)
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**5000, -1, 0]),
    st.floats(),
    st.complex_numbers(),
    st.text(alphabet=st.characters(), max_size=20),
    st.sampled_from(["step", "reduction", "allreduce", "worker", "last:3", "\ud800", "\0"]),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(keys, st.integers(), max_size=2),
    st.builds(object),
    st.builds(Evil),
    st.builds(EvilText, st.just("evil")),
    st.builds(EvilNumber, st.just(5)),
    st.builds(EvilFloat, st.just(5.0)),
    st.builds(Flag, st.just(3)),
    st.builds(LongText, st.just("long")),
    st.sampled_from([np.int64(3), np.float32(2.5), np.array([1, 2]), np.array(3), np.nan]),
    st.sampled_from([len, repr, int, Evil, Exception, ..., fail, tl, MADE]),
)
VALUES = ("nbytes", "seq", "bucket", "peer", "key", "request", "queue_depth", "micro_step", "step")
values = st.dictionaries(st.sampled_from(VALUES), anything, max_size=4)


def use_span(span: Any, track: Any, values: dict[str, Any], ends: tuple[Any, Any, Any]) -> None:
    with span(track, **values):
        pass
    token = span.begin(track, **values)
    token.end(ends[0])
    token.end(failed=ends[1])
    span.begin(**values).discard()
    with span:
        pass
    span.__exit__(*ends)
    span.__enter__()


def use_completed(start: Any, end: Any, track: Any, said: dict[str, Any], flags: Any) -> None:
    MADE.complete(start, end, track, failed=flags[0], estimated=flags[1], **said)


def use_step(number: Any, samples: Any, tokens: Any) -> None:
    with tl.step(number, samples, tokens) as step:
        with step, MADE:
            recorder.begin_step(number)
        recorder.begin_step(number)
    recorder.end_step()
    step.__exit__(number, samples, tokens)


def use_traced(name: Any, kind: Any, function: Any) -> None:
    tl.traced(name, kind=kind)
    if not callable(name):  # else it is the function, handed back, and its failures are its own
        tl.traced(name)(function)
    tl.traced(function)


def start_and_stop(options: dict[str, Any], directory: Any) -> None:
    tl.stop()
    if directory is None or isinstance(directory, str):  # which might be any place on this machine
        directory = f"trace-{next(FOLDERS)}"
    tl.start(directory, **options)
    with tl.step(1), MADE(nbytes=1):
        recorder.detail()
    recorder.active()
    recorder.backend()
    recorder.now()


OPTIONS = ("role", "rank", "world", "local_rank", "job", "shard", "keep", "budget", "detail")
flags = st.tuples(anything, anything)

# What is called with what, and whether it may refuse.
CALLS: dict[str, tuple[Callable[..., object], list[st.SearchStrategy[Any]], bool]] = {
    "start stop active backend now": (
        start_and_stop,
        [st.dictionaries(st.sampled_from(OPTIONS), anything, max_size=3), anything],
        True,
    ),
    "span": (
        lambda name, said: tl.span(name, **said),
        [
            anything,
            st.dictionaries(
                st.sampled_from(["kind", "op", "algorithm", "communicator", "shard", "device"]),
                anything,
                max_size=3,
            ),
        ],
        True,
    ),
    "Span Token": (use_span, [st.just(MADE), anything, values, st.tuples(*[anything] * 3)], False),
    "DeviceSpan DeviceToken": (
        use_span,
        [st.just(ON_DEVICE), anything, values, st.tuples(*[anything] * 3)],
        False,
    ),
    "complete": (use_completed, [anything, anything, anything, values, flags], False),
    "step Step begin_step end_step": (use_step, [anything] * 3, False),
    "traced": (use_traced, [anything] * 3, True),
    "instant": (
        lambda name, kind, said: tl.instant(name, kind, **said),
        [anything, anything, values],
        False,
    ),
    "counter": (tl.counter, [anything] * 3, False),
    "keep": (tl.keep, [], False),
    "attach": (tl.attach, [anything], True),
    "communicator": (recorder.communicator, [anything] * 2, False),
    "track": (recorder.track, [anything], False),
    "identify": (recorder.identify, [anything] * 3, False),
    "clock_reading": (recorder.clock_reading, [anything], False),
    "on_start": (recorder.on_start, [anything], False),
    "on_stop": (recorder.on_stop, [anything], False),
    "detail": (recorder.detail, [anything], True),
}


def call(name: str, examples: int) -> str | None:
    """Call with many things; return what raised, if anything did."""
    function, arguments, may_refuse = CALLS[name]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*arguments))
    def often(given_arguments: tuple[Any, ...]) -> None:
        try:
            function(*given_arguments)
        except InvalidArgument as error:
            if not may_refuse or str(error).count("\n"):
                raise

    try:
        often()
    except Exception as error:  # noqa: BLE001 - whatever it is, that is what is asked for
        return f"{name}: {''.join(traceback.format_exception(error))}"
    return None


def main() -> None:
    """Call everything while nothing records, and while something does."""
    warnings.simplefilter("always")
    covered = {word for names in CALLS for word in names.split()}
    missing = {*recorder.__all__, *tl.__all__} - covered
    sys.stdout.write(f"not called: {sorted(missing)}\n")
    for is_recording in (False, True):
        for name in CALLS:
            if is_recording:
                tl.start("trace")
            raised = call(name, int(sys.argv[1]))
            if raised:
                sys.stdout.write(f"{'recording' if is_recording else 'off'}: {raised}\n")
    tl.stop()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
