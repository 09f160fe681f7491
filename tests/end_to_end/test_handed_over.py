"""What workers make comes back whole: several things in a message, arrays in files or without any."""

import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pytest

import tracelens as tl
from tracelens import load, parallel
from tracelens.executors import open_executor
from tracelens.parallel import choose_batch_size, map_in_order
from tracelens.reports import to_json
from tracelens.simulator.synthetic import Scenario, write

MANY = Scenario(ranks=17, ranks_per_host=4, steps=12)
SOME = [1, 1000, 0, 100_000]


def build_value(count: int) -> dict[str, Any]:
    return {"numbers": np.arange(count), "word": "x", "fractions": np.ones((2, count))}


class Here(Executor):
    """Run each task immediately, with a callback before it and one after it."""

    num_workers = 8

    def __init__(
        self, before: Callable[[Any], object] = id, after: Callable[[Any], object] = id
    ) -> None:
        self._before, self._after = before, after

    def submit(self, work: Any, /, *arguments: Any, **_named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self._before(work)
        done.set_result(work(*arguments))
        self._after(work)
        return done


def equal(found: list[dict[str, Any]]) -> None:
    np.testing.assert_equal(found, [build_value(count) for count in SOME])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_arrays_from_processes_are_writable_and_leave_no_file(temporary: Path) -> None:
    """They can be written to, as any, and no file is left."""
    with open_executor("processes:2") as executor:
        found = list(map_in_order(build_value, SOME, executor))
    equal(found)
    found[1]["numbers"] += 1
    assert list(temporary.iterdir()) == []


def test_files_are_there_while_they_are_needed(temporary: Path) -> None:
    """Each is read once, and then it is gone."""
    with ThreadPoolExecutor(1) as executor:
        for _ in map_in_order(build_value, [1000] * 50, executor):
            assert len([*temporary.glob("*/*")]) <= 2
    assert list(temporary.iterdir()) == []


def test_a_worker_that_sees_no_file() -> None:
    """One on another machine sends everything."""
    elsewhere = Here(before=lambda work: rmtree(work.folder))
    equal([one for count in SOME for one in map_in_order(build_value, [count], elsewhere)])


def test_what_workers_are_given_is_left_in_files(temporary: Path) -> None:
    """Each is read once, and then it is gone, with what was made of it."""
    arrays = [np.arange(count) for count in SOME]
    file_counts: list[int] = []
    pool = Here(before=lambda _: file_counts.append(len([*temporary.glob("*/*")])))
    np.testing.assert_equal(
        [*map_in_order(np.negative, arrays, pool)], [-array for array in arrays]
    )
    assert max(file_counts) >= 1
    assert list(temporary.iterdir()) == []


class Elsewhere(Here):
    """Sees none of the files that it is given; of two things at a time."""

    num_workers = 1

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bool] = []

    def submit(self, work: Any, /, *arguments: Any, **_named: Any) -> Future[Any]:
        self.sent.append(isinstance(arguments[0], np.ndarray))
        for file in () if self.sent[-1] else Path(work.folder).iterdir():
            file.unlink()
        return super().submit(work, *arguments)


def test_workers_that_see_no_files_are_sent_everything() -> None:
    """Nothing more is left in files for them; what was under way is handed out anew."""
    given = [np.arange(100_000)] * 5
    pool = Elsewhere()
    np.testing.assert_equal([*map_in_order(np.negative, given, pool)], [-one for one in given])
    assert pool.sent == [False] * 2 + [True] * 5


def test_values_are_sent_if_they_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is sent, either way."""

    def full(**_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parallel, "NamedTemporaryFile", full)
    equal(list(map_in_order(build_value, SOME, Here())))
    given = [np.arange(count) for count in SOME]
    np.testing.assert_equal([*map_in_order(np.negative, given, Here())], [-one for one in given])


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_file_that_is_damaged(damage: Callable[[Path], None]) -> None:
    """What was in it is made again, here."""

    def spoil(work: Any) -> None:
        for file in Path(work.folder).iterdir():
            damage(file)

    equal(list(map_in_order(build_value, SOME, Here(after=spoil))))


def test_several_small_files_at_once(tmp_path: Path) -> None:
    """Reports are the same, and a file that cannot be read is named."""
    write(MANY, tmp_path)
    damaged = sorted(tmp_path.glob("*.arrow"))[3]
    damaged.write_bytes(b"")
    with ThreadPoolExecutor(1) as executor:
        assert choose_batch_size(MANY.ranks, executor) == 2
        trace = load.open(tmp_path, executor=executor)
        report = to_json.render(tl.analyze(trace, executor=executor))
    assert any(damaged.name in note.file for note in trace.notes)
    assert report == to_json.render(tl.analyze(load.open(tmp_path)))


def test_every_worker_has_several_turns() -> None:
    """Else some would be idle at the end, while others still have much to do."""
    with ThreadPoolExecutor(4) as four:
        assert [choose_batch_size(count, four) for count in (1, 31, 64, 512, 10**6)] == [
            1,
            1,
            2,
            16,
            32,
        ]
    assert choose_batch_size(512, None) == 1
