"""The gRPC parameter server: real servers and workers, whose requests are known on both ends."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.launch.examples import record_example, run_example
from support.launch.recording import Recorded, read_all
from support.turns import select_turn

from tracelens.placement import STRATEGIES, sum_shard_bytes

if TYPE_CHECKING:
    Trained = Callable[[str], tuple[list[Recorded], str]]

pytestmark = pytest.mark.end_to_end

MODES = (
    "sync",
    pytest.param("async", marks=pytest.mark.slow),
    pytest.param("pipelined", marks=pytest.mark.slow),
)
SCRIPT = "grpc_parameter_server.py"
WORKERS, SHARDS, STEPS, HIDDEN = 2, 2, 40, 96
FEW = 6  # steps
SIZES = [4 * a * b for a, b in [(64, HIDDEN), *[(HIDDEN, HIDDEN)] * 3, (HIDDEN, 10)]]
SIZE = (f"--shards={SHARDS}", f"--hidden={HIDDEN}")
LOSS = re.compile(r"loss (\d+\.\d+) -> (\d+\.\d+)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Train in a mode, once for all tests that look at it: what was recorded, and what it printed."""

    @functools.cache
    def train(mode: str) -> tuple[list[Recorded], str]:
        folder = tmp_path_factory.mktemp(mode) / "t"
        done = run_example(SCRIPT, WORKERS, folder, *SIZE, f"--steps={STEPS}", f"--mode={mode}")
        assert done.returncode == 0, done.stderr
        return read_all(folder), done.stdout

    return train


def _requests(recorded: list[Recorded], role: str, ops: set[str]) -> Counter[tuple[int, int]]:
    """Count (shard, request id) of these operations, on one end."""
    return Counter(
        (event["shard"], event["request"])
        for process in recorded
        if process.side.process.role == role
        for event in process.events
        if event["op"] in ops
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains(mode: str, trained: Trained) -> None:
    losses = [
        (float(first_loss), float(last_loss))
        for first_loss, last_loss in LOSS.findall(trained(mode)[1])
    ]
    assert len(losses) == WORKERS
    # A worker that starts late finds what the other one has already trained.
    untrained = max(first_loss for first_loss, _ in losses)
    assert all(last_loss < untrained for _, last_loss in losses)


@pytest.mark.parametrize("mode", MODES)
def test_requests_match_one_to_one(mode: str, trained: Trained) -> None:
    """What a worker asks for, and what a shard received or sent: the same requests, once each."""
    recorded, _ = trained(mode)
    asked_requests = _requests(recorded, "worker", {"push", "pull"})
    answered_requests = _requests(recorded, "ps", {"receive", "reply"})
    assert asked_requests.keys() == answered_requests.keys()
    assert set(asked_requests.values()) == {1}
    per_request = 2 if mode == "pipelined" else 1  # there a push comes back as a pull
    assert set(answered_requests.values()) == {per_request}


@pytest.mark.slow
@pytest.mark.parametrize("placement", select_turn(sorted(STRATEGIES)))
def test_bytes_per_shard_are_those_of_the_placement(placement: str, tmp_path: Path) -> None:
    chosen = f"--placement={placement}"
    recorded = record_example(SCRIPT, WORKERS, tmp_path / "t", *SIZE, f"--steps={FEW}", chosen)
    placed = sum_shard_bytes(STRATEGIES[placement](SIZES, SHARDS), SHARDS)
    for op in ("push", "pull"):
        bytes_by_shard = [0] * SHARDS
        for process in recorded:
            for event in process.events:
                if event["op"] == op:
                    bytes_by_shard[event["shard"]] += event["bytes"]
        assert bytes_by_shard == [FEW * WORKERS * nbytes for nbytes in placed]


def test_a_synchronous_update_takes_all_gradients(trained: Trained) -> None:
    """One update a step and shard, which no worker passes by: the token comes after it."""
    recorded, _ = trained("sync")
    applied: dict[int, int] = {}
    for process in recorded:
        for event in process.named("apply"):
            end = event["start_ns"] + event["duration_ns"]
            applied[event["step"]] = max(applied.get(event["step"], 0), end)
    assert len(applied) == STEPS
    barriers = [event for process in recorded for event in process.named("wait for the token")]
    assert len(barriers) == STEPS * WORKERS
    for barrier in barriers:
        assert barrier["start_ns"] + barrier["duration_ns"] >= applied[barrier["step"]]


@pytest.mark.slow
def test_asynchronous_updates_are_one_a_push(trained: Trained) -> None:
    """Each makes a version of its own; a pull says which it got."""
    for process in trained("async")[0]:
        update_numbers = [event["seq"] for event in process.named("apply")]
        if process.side.process.role == "ps":
            assert sorted(update_numbers) == list(range(1, STEPS * WORKERS + 1))
            assert all(0 <= event["seq"] <= len(update_numbers) for event in process.named("reply"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", select_turn(("sync", "async", "pipelined")))
def test_a_killed_worker_ends_the_training(mode: str, tmp_path: Path) -> None:
    """No process waits for ever, and everything recorded until then is kept.

    Where workers do not wait for each other, the other one may not have begun before all was over.
    """
    kill = ["--kill-rank=1", "--kill-step=2", f"--steps={FEW}", f"--mode={mode}"]
    done = run_example(SCRIPT, WORKERS, tmp_path / "t", *kill)
    assert done.returncode != 0
    left = {path.name[: len("ps-00000")] for path in (tmp_path / "t").glob("ps-*")}
    assert left == {"ps-00000", "ps-00001"}
    workers = {path.name[: len("worker-00000")] for path in (tmp_path / "t").glob("worker-*")}
    assert {"worker-00001"} <= workers <= {"worker-00000", "worker-00001"}
    assert mode != "sync" or len(workers) == WORKERS


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    done = run_example(SCRIPT, WORKERS, tmp_path / "t", "--shards=0")
    assert done.returncode != 0
    assert "at least one worker and one shard" in done.stderr
