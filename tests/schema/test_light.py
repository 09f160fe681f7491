"""Light dataclasses are dataclasses to whoever looks at them, and cost little to define."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from tracelens.schema.light import asdict, replace
from tracelens.schema.side import Process, SideTables, Thread

THREAD = Thread(3, "main", native_id=7)


def test_they_are_made_and_compared_by_their_fields() -> None:
    """In order or by name, with the defaults of the class."""
    assert Thread(3, name="main", native_id=7) == THREAD
    assert Thread(3, "main") != THREAD
    assert (THREAD.index, THREAD.in_flight, THREAD.device) == (3, False, None)
    assert hash(Thread(3, "main", 7)) == hash(THREAD)
    other: object = Process()
    assert other != THREAD
    assert repr(THREAD) == (
        "Thread(index=3, name='main', native_id=7, in_flight=False, device=None)"
    )


def test_they_do_not_change() -> None:
    """Neither by assignment nor by deletion; a factory makes a default for each."""
    with pytest.raises(AttributeError, match="frozen"):
        THREAD.index = 4  # type: ignore[misc]  # what is tested
    with pytest.raises(AttributeError, match="frozen"):
        del THREAD.index
    assert Process().versions is not Process().versions


@pytest.mark.parametrize("wrong", [(), (1,), (1, "a", 0, False, None, 6)])
def test_what_does_not_fit_is_refused(wrong: tuple[object, ...]) -> None:
    """As a call with wrong arguments is."""
    with pytest.raises(TypeError, match="Thread"):
        Thread(*wrong)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="Thread"):
        Thread(1, "a", speed=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Thread"):
        Thread(1, "a", index=2)  # type: ignore[misc]


def test_the_standard_library_knows_them() -> None:
    """`fields`, `replace` and `asdict`, nested as well; copies and pickles are equal."""
    assert [field.name for field in dataclasses.fields(Thread)] == list(asdict(THREAD))
    assert dataclasses.replace(THREAD, name="other") == replace(THREAD, name="other")
    assert dataclasses.asdict(THREAD) == asdict(THREAD)
    side = SideTables(process=Process(rank=2), threads=(THREAD,))
    assert dataclasses.asdict(side)["threads"] == (asdict(THREAD),)
    assert dataclasses.asdict(side)["process"]["rank"] == 2
    assert dataclasses.is_dataclass(Thread)
    assert copy.deepcopy(side) == side
    assert pickle.loads(pickle.dumps(THREAD)) == THREAD  # noqa: S301 - our own
