"""A recording records closer while the trace folder's request says so, and goes back."""

import time
from pathlib import Path

import pytest

from tracelens.schema.detail import REQUEST_FILE, DetailRequest, read_request, write_request
from tracelens_instrument.core.clock import now
from tracelens_instrument.retention.detail_switch import DetailSwitch

SECOND = 10**9


class Steps:
    """Calls a switch at moments of our choice; `changes` are what it asked for."""

    def __init__(self, folder: Path) -> None:
        self.changes: list[DetailRequest | None] = []
        self.switch = DetailSwitch(folder, self.changes.append)
        self.begin_ns = now()

    def end_at(self, seconds: float) -> float:
        """End a step; return in how many seconds, from the begin, the switch wants to be called."""
        due_ns = self.switch.at_step_boundary(self.begin_ns + int(seconds * SECOND))
        return (due_ns - self.begin_ns) / SECOND


def _request(begin_s: float, end_s: float, level: str = "layer") -> DetailRequest:
    wall_ns = time.time_ns()
    return DetailRequest(wall_ns + int(begin_s * SECOND), wall_ns + int(end_s * SECOND), level)


def test_it_begins_and_ends_at_the_requested_times(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    request = _request(2, 5)
    write_request(tmp_path, request)
    assert steps.end_at(0.5) == pytest.approx(1.5)  # it looks once a second
    assert steps.end_at(1.6) == pytest.approx(2, abs=0.1)
    assert steps.changes == []
    steps.end_at(2.2)
    assert steps.changes == [request]
    assert steps.end_at(4.5) == pytest.approx(5, abs=0.1)
    steps.end_at(5.2)
    assert steps.changes == [request, None]
    steps.end_at(9)
    assert steps.changes == [request, None]


def test_a_request_that_is_withdrawn_ends(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    write_request(tmp_path, _request(-1, 60))
    steps.end_at(0)
    (tmp_path / REQUEST_FILE).unlink()
    steps.end_at(0.5)  # it has not looked again
    assert len(steps.changes) == 1
    steps.end_at(1.1)
    assert steps.changes[1:] == [None]


def test_a_new_request_replaces_the_one_before(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    first, second = _request(-1, 60), _request(-1, 60, "op")
    write_request(tmp_path, first)
    steps.end_at(0)
    write_request(tmp_path, second)
    steps.end_at(1.1)
    assert steps.changes == [first, None, second]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"begin_ns": 1}',
        '{"begin_ns": 1, "end_ns": "later"}',
        '{"begin_ns": 1, "end_ns": 2, "level": "everything"}',
        '{"begin_ns": 1, "end_ns": 2, "sampling_hz": 0}',
        '{"begin_ns": 1, "end_ns": 2, "sampling_hz": true}',
        '{"begin_ns": 1, "end_ns": 2, "more": 3}',
        "[" * 4000,
    ],
)
def test_what_is_no_request_changes_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / REQUEST_FILE).write_text(content)
    assert read_request(tmp_path) is None
    steps = Steps(tmp_path)
    steps.end_at(0)
    assert steps.changes == []


def test_a_request_that_is_over_changes_nothing(tmp_path: Path) -> None:
    """As when the job starts again in the same folder."""
    write_request(tmp_path, _request(-60, -1))
    steps = Steps(tmp_path)
    steps.end_at(0)
    assert steps.changes == []


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    request = DetailRequest(begin_ns=1, end_ns=2, level="op", sampling_hz=100)
    write_request(tmp_path, request)
    assert read_request(tmp_path) == request
    assert [file.name for file in tmp_path.iterdir()] == [REQUEST_FILE]
