"""Handles are context managers like any other, also where the type is asked for them."""

from contextlib import ExitStack
from pathlib import Path

from support.launch.recording import read_one

import tracelens as tl


def test_handles_and_their_uses_enter_a_stack(tmp_path: Path) -> None:
    """`ExitStack.enter_context` takes a handle and one of its uses, and both are recorded."""
    tl.start(tmp_path, rank=0, world=1)
    span = tl.span("stacked")
    with ExitStack() as stack:
        stack.enter_context(span)
        stack.enter_context(span(nbytes=3))
    tl.stop()
    events = read_one(tmp_path).named("stacked")
    assert [event["status"] for event in events] == ["closed", "closed"]
    assert sorted(event["bytes"] or 0 for event in events) == [0, 3]
