"""A group of ranks has one identity in all its members, and no two groups share one."""

import threading
from collections.abc import Sequence
from pathlib import Path

from support.launch.recording import read_one

import tracelens as tl
from tracelens.schema.side import parse_lines
from tracelens_instrument import recorder
from tracelens_instrument.core.registry import Registry


def uids(groups: Sequence[tuple[list[int], str]], job: str = "j") -> list[str]:
    """Return the identities that a process gives to groups it makes in this order."""
    registry = Registry()
    lines = [b'{"table":"process","schema":1}']
    for ranks, name in groups:
        registry.communicator(ranks, name)
    registry.listen(lines.append, job)
    return [row.uid for row in parse_lines(lines).communicators]


def test_members_agree() -> None:
    """Whatever other groups a member belongs to."""
    world, pair, other = ([0, 1, 2, 3], "world"), ([0, 1], "pair"), ([0, 2], "pair")
    assert uids([world, pair])[0] == uids([world])[0]
    assert uids([world, pair])[1] == uids([world, other, pair])[2]


def test_groups_differ() -> None:
    """By members, name, order of creation among equals, and job."""
    found = uids([([0, 1], "a"), ([1, 0], "a"), ([0, 1], "b"), ([0, 1], "a"), ([0, 1, 2], "a")])
    assert len(set(found)) == 5
    assert uids([([0, 1], "a")], "one job") != uids([([0, 1], "a")], "another")


def test_groups_made_before_and_during(tmp_path: Path) -> None:
    """Both are written down, with the job that start was told."""
    early = recorder.communicator([0, 1], "early")
    tl.start(tmp_path, job="told late")
    late = recorder.communicator([0, 1], "late")
    tl.stop()
    rows = {row.index: row for row in read_one(tmp_path).side.communicators}
    assert rows[early].ranks == rows[late].ranks == [0, 1]
    assert rows[early].uid in uids([([0, 1], "early")] * 9, "told late")
    assert rows[early].uid != rows[late].uid


def test_equal_handles_share_a_definition() -> None:
    """Making a handle again costs no new definition."""
    assert tl.span("same").definition == tl.span("same").definition
    assert tl.span("same").definition != tl.span("same", kind="forward").definition


def test_threads_that_name_at_once() -> None:
    """Different definitions have different numbers, equal ones the same, for any order of threads."""
    registry = Registry()
    lines: list[bytes] = []
    registry.listen(lines.append, "")
    numbers_by_thread: list[list[int]] = []

    def name_all() -> None:
        numbers_by_thread.append([registry.definition_id(f"n{n}", "user") for n in range(500)])

    threads = [threading.Thread(target=name_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numbers == numbers_by_thread[0] for numbers in numbers_by_thread)
    assert len(set(numbers_by_thread[0])) == 500
    assert len(lines) == 500
