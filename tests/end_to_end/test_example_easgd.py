"""The EASGD family: every method trains, and records what tells the methods apart."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.launch.examples import record_example, run_example
from support.launch.recording import Recorded, read_all
from support.turns import select_turn

if TYPE_CHECKING:
    Trained = Callable[[str, str], tuple[list[Recorded], str]]

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

WITH_MASTER = ("original", "async", "hogwild", "sync1")
WITHOUT_MASTER = ("sync2", "sync3")
UNORDERED = select_turn(("async", "hogwild"))  # workers that do not wait for each other
WORKERS, STEPS, FEW = 2, 60, 8
NONE, SOME = "0", "0.9"  # momentum
HIDDEN = "--hidden=64"
LOSS = re.compile(r"loss (\d+\.\d+) -> (\d+\.\d+)")


def _ranks(method: str) -> int:
    return WORKERS + (method in WITH_MASTER)


def _record(method: str, folder: Path, *arguments: str) -> list[Recorded]:
    settings = [f"--method={method}", f"--steps={FEW}", HIDDEN, *arguments]
    return record_example("mpi_easgd.py", _ranks(method), folder, *settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train by a method, once for all tests that look at it: what was recorded, and what it printed."""

    @functools.cache
    def train(method: str, momentum: str) -> tuple[list[Recorded], str]:
        settings = [f"--method={method}", f"--momentum={momentum}", f"--steps={STEPS}", HIDDEN]
        folder = tmp_path_factory.mktemp(method) / "t"
        done = run_example("mpi_easgd.py", _ranks(method), folder, *settings)
        assert done.returncode == 0, done.stderr
        return read_all(folder), done.stdout

    return train


def _of_role(recorded: list[Recorded], role: str) -> list[Recorded]:
    return [process for process in recorded if process.side.process.role == role]


@pytest.mark.parametrize(
    ("method", "momentum"),
    [
        ("original", NONE),
        *((method, NONE) for method in UNORDERED),
        *select_turn([("sync1", NONE), *((method, NONE) for method in WITHOUT_MASTER)]),
        *select_turn([("original", SOME), ("sync3", SOME)]),
    ],
)
def test_every_method_trains(method: str, momentum: str, trained: Trained) -> None:
    _, output = trained(method, momentum)
    losses = [
        (float(first_loss), float(last_loss)) for first_loss, last_loss in LOSS.findall(output)
    ]
    assert len(losses) == WORKERS
    # A worker that starts late may find what the other one has already trained.
    untrained = max(first_loss for first_loss, _ in losses)
    assert all(last_loss < untrained for _, last_loss in losses)
    updates = STEPS if method.startswith("sync") else STEPS * WORKERS
    assert f"centre: version {updates}" in output


def test_the_synchronous_methods_end_with_the_same_centre(tmp_path: Path) -> None:
    """They send the same weights by other ways, so only the order of summing differs."""
    centres = []
    for method in ("sync1", "sync2", "sync3"):
        saved = tmp_path / f"{method}.npy"
        _record(method, tmp_path / method, f"--save={saved}")
        centres.append(np.load(saved))
    assert np.abs(centres[0]).max() > 0.1
    assert max(np.abs(centres[0] - other).max() for other in centres[1:]) < 1e-4


@pytest.mark.parametrize("method", ["original", *UNORDERED])
def test_both_ends_of_a_transfer_name_one_request(method: str, trained: Trained) -> None:
    """Each transfer is in the worker's trace and in the master's, once, with the same size."""
    recorded, _ = trained(method, NONE)
    ends = [
        Counter(
            (event["op"], event["request"], event["bytes"])
            for process in _of_role(recorded, role)
            for event in process.events
            if event["op"] in ("weights_down", "weights_up")
        )
        for role in ("worker", "ps")
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2 * STEPS * WORKERS
    assert set(ends[0].values()) == {1}


def test_waiting_for_the_turn_is_told_apart_from_transfers(tmp_path: Path) -> None:
    """While the master serves one worker, the others wait for their turn."""
    slowed = _record("original", tmp_path / "t", "--slow-rank=0", "--slow-ms=200")
    workers = _of_role(slowed, "worker")
    slow, waiting = sorted(workers, key=lambda process: process.side.process.rank)
    turns = [event for event in waiting.events if event["op"] == "turn_wait"]
    served = [event for event in slow.events if event["kind"] == "backprop"]
    assert len(turns) == FEW
    shares = []
    for turn, backprop in list(zip(turns, served, strict=True))[1:]:
        began = max(turn["start_ns"], backprop["start_ns"])
        ended = backprop["start_ns"] + backprop["duration_ns"]
        assert turn["start_ns"] + turn["duration_ns"] >= ended
        shares.append((ended - began) / backprop["duration_ns"])
    assert median(shares) > 0.5  # now and then a busy machine may have kept one from its wait


@pytest.mark.parametrize("method", UNORDERED)
def test_staleness_is_in_the_trace(method: str, trained: Trained) -> None:
    """Weights that come up name the version of the centre that they were last pulled towards."""
    recorded, _ = trained(method, NONE)
    (master,) = _of_role(recorded, "ps")
    version_by_request = {
        e["request"]: e["seq"] for e in master.events if e["op"] == "master_update"
    }
    assert max(version_by_request.values()) == STEPS * WORKERS
    for worker in _of_role(recorded, "worker"):
        ups = [event for event in worker.events if event["op"] == "weights_up"]
        staleness = [version_by_request[event["request"]] - 1 - event["seq"] for event in ups]
        assert min(staleness) >= 0


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    done = run_example("mpi_easgd.py", 1, tmp_path / "t", "--method=original")
    assert done.returncode != 0
    assert "at least one worker" in done.stderr
