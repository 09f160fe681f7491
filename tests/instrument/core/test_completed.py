"""A token that is the callback of a future ends its span when that is done, as failed if it failed."""

import sys
from pathlib import Path

import pytest
from support.launch.recording import read_one

import tracelens as tl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder works on Linux")


class Done:
    """A future that holds a value or an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error

    def value(self) -> str:
        if self._error is not None:
            raise self._error
        return "done"


@pytest.mark.parametrize(
    ("future", "status"), [(Done(), "closed"), (Done(ValueError()), "exception")]
)
def test_a_span_ends_with_it(trace: Path, future: Done, status: str) -> None:
    span = tl.span("bucket", kind="reduction")
    for _ in range(2):  # the first opens the recording
        span.begin().completed(future)
    tl.stop()
    assert [event["status"] for event in read_one(trace).named("bucket")] == [status] * 2


def test_what_is_no_error_of_the_program_is_passed_on(trace: Path) -> None:
    span = tl.span("bucket", kind="reduction")
    span.begin().end()
    token = span.begin()
    with pytest.raises(KeyboardInterrupt):
        token.completed(Done(KeyboardInterrupt()))
    token.end()
    tl.stop()
    assert len(read_one(trace).named("bucket")) == 2


def test_once_is_enough(trace: Path) -> None:
    token = tl.span("bucket", kind="reduction").begin()
    token.completed(Done())
    token.completed(Done(ValueError()))
    tl.stop()
    assert [event["status"] for event in read_one(trace).named("bucket")] == ["closed"]
