"""Spans nest, recurse, fail and interleave, and each is closed as itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launch.recording import read_one

import tracelens as tl


def test_a_handle_may_be_used_inside_itself(trace: Path) -> None:
    """A handle may be used inside itself, in both forms."""
    span = tl.span("piece")
    with span, span, span(nbytes=1), span:
        pass
    tl.stop()
    pieces = read_one(trace).named("piece")
    assert [e["depth"] for e in pieces] == [0, 1, 2, 3]
    ends = [e["start_ns"] + e["duration_ns"] for e in pieces]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("form", ["plain", "values", "token", "traced"])
def test_exception_passes_and_shows(trace: Path, form: str) -> None:
    """The exception is the caller's; the span says that it ended by one."""
    span = tl.span("piece")

    @tl.traced("piece")
    def fail() -> None:
        raise KeyError(form)

    def use() -> None:
        if form == "plain":
            with span:
                raise KeyError(form)
        elif form == "values":
            with span(nbytes=3):
                raise KeyError(form)
        elif form == "token":
            span.begin().end(failed=True)
            raise KeyError(form)
        else:
            fail()

    with pytest.raises(KeyError, match=form):
        use()
    tl.stop()
    event = read_one(trace).one("piece")
    assert event["status"] == "exception"
    assert event["duration_ns"] > 0


def test_generators_that_do_not_nest(trace: Path) -> None:
    """Two handles that are left in the order in which they were entered are not mixed up."""

    def hold(name: str) -> Iterator[None]:
        with tl.span(name):
            yield

    generator_1, generator_2 = hold("first"), hold("second")
    for generator in (generator_1, generator_2):
        next(generator)
    for generator in (generator_1, generator_2):
        next(generator, None)
    tl.stop()
    recorded = read_one(trace)
    ends = {e["name"]: e["start_ns"] + e["duration_ns"] for e in recorded.events}
    assert ends["first"] < ends["second"]


def test_coroutines_share_a_traced_function(trace: Path) -> None:
    """Calls of one coroutine function that overlap in a thread keep their own ends."""

    @tl.traced("visit")
    async def visit(gate: asyncio.Event, following: asyncio.Event) -> None:
        await gate.wait()
        following.set()

    async def main() -> None:
        gates = [asyncio.Event() for _ in range(4)]
        visits = [visit(gates[n], gates[n + 1]) for n in range(3)]
        await asyncio.gather(*visits, release(gates[0]))

    async def release(gate: asyncio.Event) -> None:
        await asyncio.sleep(0)
        gate.set()

    asyncio.run(main())
    tl.stop()
    visits = read_one(trace).named("visit")
    ends = [e["start_ns"] + e["duration_ns"] for e in visits]
    assert [e["depth"] for e in visits] == [0, 1, 2]
    assert ends == sorted(ends)


def test_second_end_of_a_token_does_nothing(trace: Path) -> None:
    token = tl.span("piece").begin()
    token.end()
    token.end(failed=True)
    tl.stop()
    assert read_one(trace).one("piece")["status"] == "closed"


def test_discarded_token_never_was(trace: Path) -> None:
    """A span that is taken back leaves nothing."""
    span = tl.span("piece")
    span.begin().discard()
    span.begin().end()
    tl.stop()
    assert len(read_one(trace).named("piece")) == 1


def test_open_at_the_end(trace: Path) -> None:
    """A span that is open when the recording ends has no duration."""
    with tl.span("piece"):
        tl.stop()
    event = read_one(trace).one("piece")
    assert (event["status"], event["duration_ns"]) == ("open", None)


def test_entered_before_and_left_during(tmp_path: Path) -> None:
    """A span that was entered while nothing recorded is not recorded, and closes nothing else."""
    with tl.span("early"):
        tl.start(tmp_path / "trace")
        inner = tl.span("inner").begin()
        with tl.span("late"):
            pass
    inner.end()
    tl.stop()
    recorded = read_one(tmp_path / "trace")
    assert sorted(event["name"] for event in recorded.events) == ["inner", "late"]


def test_what_is_left_last_is_closed_first_also_after_another_was_left_from_below(
    trace: Path,
) -> None:
    """A use that others do not nest in is taken out; the others keep their order."""
    around, span = tl.span("around"), tl.span("piece")
    around.__enter__()
    span.__enter__()
    span.__enter__()
    around.__exit__(None, None, None)
    span.__exit__(None, None, None)
    span.__exit__(None, None, None)
    tl.stop()
    pieces = sorted(read_one(trace).named("piece"), key=lambda event: event["start_ns"])
    first, second = (event["start_ns"] + event["duration_ns"] for event in pieces)
    assert second < first
