"""Whatever fails in the recorder costs one warning and an exact count, and never the training."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.record import RECORD_BYTES
from tracelens.schema.vocabulary import FAILED, NO_ROOM
from tracelens_instrument.core.spans import Span
from tracelens_instrument.recording import Recording
from tracelens_instrument.storage import segments
from tracelens_instrument.storage.segments import SEGMENT_BYTES

SLOTS = SEGMENT_BYTES // RECORD_BYTES - 1
LOST = 300


def function_that_raises(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_args: Any, **_named: Any) -> NoReturn:
        raise error

    return fail


def train(span: Span, times: int) -> None:
    for _ in range(times):
        with span:
            pass


def train_in_all_ways(span: Span) -> None:
    """Four events, many times."""
    for number in range(LOST):
        with span, span(nbytes=number):
            span.begin().end()
        tl.instant("seen")


def cannot(number: int) -> OSError:
    return OSError(number, os.strerror(number))


CAUSES = {
    "full disk": (os, "posix_fallocate", cannot(errno.ENOSPC)),
    "quota": (os, "posix_fallocate", cannot(errno.EDQUOT)),
    "read-only": (segments, "_new_file", cannot(errno.EROFS)),
    "no permission": (segments, "_new_file", cannot(errno.EACCES)),
    "no descriptors": (segments, "_new_file", cannot(errno.EMFILE)),
    "no mapping": (segments, "mapped", cannot(errno.ENOMEM)),
    "no memory": (segments, "mapped", MemoryError()),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_finds_no_segment_is_counted(
    trace: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Earlier events are kept; the next segment cannot be created."""
    span = tl.span("piece")
    where, name, error = CAUSES[cause]
    monkeypatch.setattr(where, name, function_that_raises(error))
    with pytest.warns(RuntimeWarning, match="recording stopped, the training goes on") as warned:
        train(span, 2 * SLOTS + LOST)  # one segment is always ahead
    tl.stop()
    assert len(warned) == 1
    recorded = read_one(trace)
    assert len(recorded.events) == 2 * SLOTS
    assert recorded.side.dropped == {NO_ROOM: LOST}
    assert len(list(trace.iterdir())) == 1


def test_a_fault_of_our_own_is_counted(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event that a mistake in the recorder costs, in every form of it."""
    span = tl.span("piece")
    train(span, SLOTS)
    monkeypatch.setattr(
        Recording,
        "reserve_slot_after",
        function_that_raises(ZeroDivisionError("our own mistake")),
    )
    with pytest.warns(RuntimeWarning, match="the recorder failed, the training goes on") as warned:
        train_in_all_ways(span)
    tl.stop()
    assert len(warned) == 1
    recorded = read_one(trace)
    assert len(recorded.events) == SLOTS
    assert recorded.side.dropped == {FAILED: 4 * LOST}
