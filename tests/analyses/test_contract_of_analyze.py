"""`tl.analyze` takes what `tl.open` returns."""

import pytest

import tracelens as tl
from tracelens.errors import InvalidArgument


def test_a_path_is_refused_with_what_to_give_instead() -> None:
    with pytest.raises(InvalidArgument, match=r"got a str, expected what tl\.open\(path\) returns"):
        tl.analyze("traces/today")  # type: ignore[arg-type]
