"""The last steps are kept when a finding asks: this rank's, or anybody's through the trace folder."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from support.launch.recording import read_all, read_one, run_child

import tracelens as tl
from tracelens_instrument.retention import last_steps
from tracelens_instrument.retention.last_steps import SlowSteps

if TYPE_CHECKING:
    from pathlib import Path


def train(first: int, end: int) -> None:
    for number in range(first, end):
        with tl.step(number), tl.span("piece"):
            pass


def fired(slow: SlowSteps, *lengths: int) -> list[int]:
    """Return after which steps of these lengths it fires."""
    moments = accumulate(lengths, initial=0)
    return [at for at, moment in enumerate(moments) if slow.ends_slow_row(moment)]


USUAL = [100, 104, 97, 101, 99] * 6


def test_steps_that_become_slow() -> None:
    """Once, with the last of three in a row, however many follow."""
    assert fired(SlowSteps(1.5, 3), *USUAL, *[300] * 9, *USUAL) == [33]


def test_again_after_it_was_over() -> None:
    assert fired(SlowSteps(1.5, 3), *USUAL, *[300] * 3, *USUAL, *[300] * 3) == [33, 66]


@pytest.mark.parametrize(
    "lengths",
    [
        [*USUAL, 900, 900, *USUAL, 900, *USUAL],  # not in a row: checkpoints, collections
        [*USUAL, *[140] * 20],  # below the factor
        [100, 400, 100, 100, 500, 300, 100, 400] * 8,  # nothing unusual here
        [*[100] * 10, *[900] * 5],  # what is usual is not known yet
    ],
)
def test_steps_that_are_as_ever(lengths: list[int]) -> None:
    assert fired(SlowSteps(1.5, 3), *lengths) == []


def test_touching_the_request_file_keeps_the_present_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Touching the file keeps the present steps, each time anew."""
    monkeypatch.setattr(last_steps, "_LOOK_EVERY_NS", 0)
    request = tmp_path / last_steps.REQUEST_FILE
    request.touch()  # an older one is none
    tl.start(tmp_path, keep="last:5")
    train(0, 300)
    request.write_text("")
    train(300, 600)
    tl.stop()
    steps = [event["step"] for event in read_one(tmp_path).named("step")]
    # It is seen when the next step ends, and takes effect with the one after.
    assert steps == [*range(297, 302), *range(595, 600)]
    assert tl.open(tmp_path).steps["step"].to_list() == steps


def test_nobody_looks_where_all_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_steps.KeepRequest, "at_step_boundary", pytest.fail)
    tl.start(tmp_path)
    train(0, 3)
    tl.stop()
    assert len(read_one(tmp_path).named("step")) == 3


@pytest.mark.parametrize("text", ["fast", "slow", "slow:1", "slow:2:0", "slow:two"])
def test_nonsense_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """With a warning that says what there is."""
    monkeypatch.setenv("TRACELENS_KEEP_WHEN", text)
    with pytest.warns(RuntimeWarning, match="expected slow:FACTOR"):
        tl.start(tmp_path, keep="last:5")
    tl.stop()


RANKS = """
import glob, os, sys, time
import tracelens as tl
folder, rank = sys.argv[1], int(sys.argv[2])
if rank == 0:
    os.environ["TRACELENS_KEEP_WHEN"] = "slow:3:2"
tl.start(folder, rank=rank, world=2, keep="last:6")
number = 0
def step(s):
    global number
    with tl.step(number):
        time.sleep(s)
    number += 1
def kept():
    (side,) = glob.glob(f"{folder}/worker-0000{rank}-*.segments/side.jsonl")
    return '"kept"' in open(side).read()
if rank == 0:
    for _ in range(40):
        step(0.002)
    seconds = 0.1
    while not kept():  # much slower than ever, also on a machine that is slow itself
        step(seconds)
        seconds *= 1.5
    for _ in range(20):
        step(0.002)
else:
    while not kept():
        step(0.01)
tl.stop()
"""


@pytest.mark.end_to_end
def test_one_rank_asks_all(tmp_path: Path) -> None:
    """What the slow one was doing, and the other meanwhile, stays."""
    program = f"""
import subprocess, sys
command = [sys.executable, "-c", {RANKS!r}, sys.argv[1]]
ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
assert [rank.wait() for rank in ranks] == [0, 0]
"""
    run_child(program, tmp_path)
    slow, other = read_all(tmp_path)
    assert slow.side.kept
    assert other.side.kept
    assert len(slow.named("step")) > 6
