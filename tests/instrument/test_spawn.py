"""Spawned processes record to the folder of their parent, as its children."""

from pathlib import Path

import pytest
from support.launch.recording import Recorded, read_all, run_child

pytestmark = pytest.mark.end_to_end

PARENT = """
import multiprocessing, os, sys
sys.path.insert(0, {folder!r})
import spawned
import tracelens as tl
tl.start(sys.argv[1], **{given!r})
with tl.span("parent"):
    pass
context = multiprocessing.get_context("spawn")
children = [context.Process(target=spawned.work, args=(n,)) for n in range({count})]
for child in children:
    child.start()
for child in children:
    child.join()
assert all(child.exitcode == 0 for child in children)
"""

CHILD = """
import tracelens as tl
SPAN = tl.span("child")
def work(number):
    {first}
    with SPAN(nbytes=number):
        pass
"""


def run(
    tmp_path: Path,
    first: str = "pass",
    given: dict[str, object] | None = None,
    count: int = 2,
    **variables: str,
) -> tuple[Recorded, list[Recorded]]:
    (tmp_path / "spawned.py").write_text(CHILD.format(first=first))
    code = PARENT.format(folder=str(tmp_path), given=given or {}, count=count)
    run_child(code, tmp_path / "trace", **variables)
    recordings = read_all(tmp_path / "trace")
    assert all(recording.side.complete for recording in recordings)
    (parent,) = [recording for recording in recordings if recording.named("parent")]
    return parent, [recording for recording in recordings if recording is not parent]


def test_child_belongs_to_its_parent(tmp_path: Path) -> None:
    """Rank, role and job are the parent's, and its pid is known."""
    given = {"rank": 3, "world": 8, "role": "ps", "job": "j", "shard": 1}
    parent, children = run(tmp_path, given=given, count=1)
    assert len(children) == 1
    for child in children:
        who, its = child.side.process, parent.side.process
        assert who.parent_rank_pid == its.pid
        assert (who.rank, who.world, who.role, who.job) == (3, 8, "ps", "j")
        assert child.named("child")


def test_child_of_a_launched_rank_is_no_rank_of_its_own(tmp_path: Path) -> None:
    """Launcher variables that the parent had too do not make the child a rank."""
    parent, children = run(tmp_path, count=1, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert parent.side.process.rank == 1
    (child,) = children
    assert child.side.process.parent_rank_pid == parent.side.process.pid


@pytest.mark.slow
def test_child_with_a_rank_from_a_launcher_is_its_own(tmp_path: Path) -> None:
    """A process that was launched as a rank from a recording one is not its child."""
    _, children = run(tmp_path, first='import os; os.environ["RANK"] = str(number + 5)')
    assert sorted(child.side.process.rank for child in children) == [5, 6]
    assert [child.side.process.parent_rank_pid for child in children] == [None, None]


@pytest.mark.slow
def test_child_that_is_given_a_rank_is_its_own(tmp_path: Path) -> None:
    """Rank 0 of ranks that a program spawns itself is not the child of a rank 0."""
    _, children = run(tmp_path, first="tl.start(rank=number, world=2)")
    assert sorted(child.side.process.rank for child in children) == [0, 1]
    assert [child.side.process.parent_rank_pid for child in children] == [None, None]


@pytest.mark.slow
def test_child_that_a_hook_identifies_is_its_own(tmp_path: Path) -> None:
    """A framework that knows the rank is believed, where nobody else has told it."""
    first = "from tracelens_instrument import recorder; recorder.identify(number, 2, number)"
    _, children = run(tmp_path, first=first)
    found = [child.side.process for child in children]
    assert sorted((who.rank, who.world, who.local_rank) for who in found) == [(0, 2, 0), (1, 2, 1)]
    assert [who.parent_rank_pid for who in found] == [None, None]
