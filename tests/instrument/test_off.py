"""Switched off, the recorder gets out of the way; switched on later, handles made before work."""

from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens_instrument import recorder


def work() -> int:
    return 7


def test_traced_returns_the_function_itself() -> None:
    """No wrapper, no cost: in all forms of the decorator."""
    assert tl.traced(work) is work
    assert tl.traced("name")(work) is work
    assert tl.traced(kind="forward")(work) is work
    assert not recorder.active()


def test_functions_decorated_too_early_are_told(tmp_path: Path) -> None:
    """Who starts after decorating is told so, once, instead of finding spans missing."""
    tl.traced(work)
    tl.traced("named")(work)
    with pytest.warns(RuntimeWarning, match="not recorded are work, named, given to tl.traced"):
        tl.start(tmp_path / "first")
    tl.stop()
    tl.start(tmp_path / "second")


def test_everything_is_inert(tmp_path: Path) -> None:
    """Every function may be called, and leaves no file."""
    span = tl.span("piece")
    with tl.step(3, samples=4), span, span(nbytes=3) as token:
        token.end()
    span.begin().end()
    span.begin().discard()
    span.complete(1, 2, failed=True, estimated=True)
    tl.instant("instant")
    tl.counter("counter", 1.0)
    recorder.begin_step(1)
    recorder.end_step()
    tl.stop()
    assert list(tmp_path.iterdir()) == []


def test_handles_made_before_start_record_after_it(tmp_path: Path) -> None:
    """A handle at module level works whenever the recording starts, also a second time."""
    span = tl.span("made early", kind="forward")
    for folder in (tmp_path / "first", tmp_path / "second"):
        with span:
            pass
        tl.start(folder)
        with span:
            pass
        tl.stop()
        assert read_one(folder).one("made early")["kind"] == "forward"


def test_wrong_handles_are_refused_when_made() -> None:
    """A mistake in the program shows when it is imported, in one sentence."""
    with pytest.raises(InvalidArgument, match="kind is 'backward', expected one of step, data"):
        tl.span("x", kind="backward")
    with pytest.raises(InvalidArgument, match="op of kind 'reduction' is 'push', expected one of"):
        tl.span("x", kind="reduction", op="push")
    with pytest.raises(InvalidArgument, match="op of kind 'user' is 'send', expected none"):
        tl.span("x", op="send")
    with pytest.raises(InvalidArgument, match="kind is 'nope'"):
        tl.traced(kind="nope")(work)
    wrong: Any = 5
    with pytest.raises(InvalidArgument, match="name of a span is 5, expected a text"):
        tl.span(wrong)
    with pytest.raises(InvalidArgument, match="algorithm of a span is 5"):
        tl.span("x", algorithm=wrong)
    with pytest.raises(InvalidArgument, match="shard is -1, expected a number from 0"):
        tl.span("x", shard=-1)
    with pytest.raises(InvalidArgument, match="role is 'boss'"):
        tl.start(role="boss")
    with pytest.raises(InvalidArgument, match="rank is 4 in a world of 4"):
        tl.start(rank=4, world=4)
    with pytest.raises(InvalidArgument, match="world is 'many', expected a number from 0"):
        tl.start(rank=4, world="many")  # type: ignore[arg-type]  # the mistake is the point
