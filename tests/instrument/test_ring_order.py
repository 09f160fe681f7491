"""Which segments may go when only the last steps are kept: none that holds anything of them."""

from pathlib import Path

import pytest

from tracelens_instrument.retention.last_steps import Ring

FIRST, SECOND, THIRD = (Path(name) for name in ("first", "second", "third"))


@pytest.mark.parametrize(("over", "gone"), [(7, []), (8, []), (9, [FIRST]), (12, [FIRST])])
def test_a_segment_stays_while_it_may_hold_the_first_of_the_last_steps(
    over: int, gone: list[Path]
) -> None:
    """Step 5 was going on when the second came into use: with 8 over, the last three begin with it."""
    ring = Ring(3)
    ring.add(FIRST, 0)
    ring.add(SECOND, 5)
    assert list(ring.drop_outdated(over)) == gone


def test_several_go_at_once_but_never_the_one_in_use() -> None:
    """However many steps were over since, the last segment stays."""
    ring = Ring(1)
    for path, steps in ((FIRST, 0), (SECOND, 2), (THIRD, 4)):
        ring.add(path, steps)
    assert list(ring.drop_outdated(100)) == [FIRST, SECOND]
    assert list(ring.drop_outdated(1000)) == []
    assert ring.drop_oldest() is None


def test_the_oldest_goes_first() -> None:
    """If room is short, the oldest segment is dropped."""
    ring = Ring(100)
    for path in (FIRST, SECOND):
        ring.add(path, 0)
    assert ring.drop_oldest() == FIRST
    assert ring.drop_oldest() is None


def test_what_is_frozen_stays() -> None:
    """Neither steps nor room make it go, the segment in use included."""
    ring = Ring(1)
    for path in (FIRST, SECOND):
        ring.add(path, 0)
    ring.freeze()
    ring.add(THIRD, 5)
    assert ring.drop_oldest() is None
    assert list(ring.drop_outdated(100)) == []
