"""Trainings of every kind, unchanged: recorded with what they do, with the same weights bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.imports import skip_without
from support.launch.recording import Recorded, read_all

skip_without("torch")
pytestmark = pytest.mark.end_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from support.launch.forked import ForkServer, RunRanks

    Events = list[dict[str, Any]]

SCRIPT = Path(__file__).parent / "scripts" / "kinds_of_training.py"
# In this order the script makes `STEPS` steps of each.
WAYS = ("accumulated", "two optimizers", "mixed precision", "own hook", "clipped")
STEPS = 4
GRADIENT = 4 * (32 * 64 + 64 + 64 * 4 + 4)  # bytes


@dataclass
class Training:
    """What two ranks recorded, the weights that they printed, and those without TraceLens."""

    ranks: list[Recorded]
    weights: list[dict[str, str]]
    plain_weights: list[dict[str, str]]


@pytest.fixture(scope="module")
def training(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return _train(run_ranks, tmp_path_factory.mktemp("trainings") / "trace", WAYS)


def _train(run_ranks: RunRanks, folder: Path, ways: Iterable[str]) -> Training:
    variables = {"TRAINING_WAYS": ",".join(ways)}
    recorded = run_ranks(SCRIPT, 2, folder, hooks=True, **variables)
    assert "TraceLens: " not in recorded.stderr
    assert "Dynamo does not know" not in recorded.stderr  # it leaves our hooks alone
    plain = run_ranks(SCRIPT, 2, **variables)
    return Training(read_all(folder), _weights(recorded.stdout), _weights(plain.stdout))


def _weights(output: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def ranks(training: Training) -> list[Recorded]:
    assert len(training.weights) == 2
    return training.ranks


@pytest.fixture
def events_of(ranks: list[Recorded]) -> Callable[[str], list[Events]]:
    """Select the events of a way to train, on each rank."""

    def select(way: str) -> list[Events]:
        first_step = STEPS * WAYS.index(way)
        steps = range(first_step, first_step + STEPS)
        return [[e for e in rank.events if e["step"] in steps] for rank in ranks]

    return select


def _count(events: Events, kind: str) -> Counter[str]:
    return Counter(e["name"] for e in events if e["kind"] == kind and e["type"] == "span")


def _reduced_bytes(events: Events) -> list[int]:
    """Return the bytes of the buckets of each step."""
    bytes_by_step: Counter[int] = Counter()
    for event in events:
        if event["name"] == "bucket":
            bytes_by_step[event["step"]] += event["bytes"]
    return list(bytes_by_step.values())


def _check(events: Events, passes: int = STEPS) -> None:
    assert _count(events, "update")["AdamW"] == STEPS
    assert _count(events, "forward")["forward"] == passes
    assert _count(events, "backprop")["backprop"] == passes
    assert _count(events, "wait")["wait for reductions"] == STEPS
    assert _reduced_bytes(events) == [GRADIENT] * STEPS


def test_weights_are_the_same_bit_for_bit(training: Training) -> None:
    """Whatever the way to train, as without TraceLens, on both ranks."""
    plain = training.plain_weights
    assert list(plain[0]) == list(WAYS)
    assert training.weights == plain
    assert plain[0] == plain[1]
    assert len(set(plain[0].values())) > len(WAYS) // 2  # they do differ


def test_reductions_match_across_ranks(ranks: list[Recorded]) -> None:
    keys = ("seq", "name", "op", "bytes", "bucket", "step")
    rows_of_rank_0, rows_of_rank_1 = (
        sorted([e[k] for k in keys] for e in rank.events if e["kind"] == "reduction")
        for rank in ranks
    )
    assert rows_of_rank_0 == rows_of_rank_1
    assert [row[0] for row in rows_of_rank_0] == list(range(len(rows_of_rank_0)))


def test_accumulated_gradients_are_reduced_in_the_last_pass(
    events_of: Callable[[str], list[Events]],
) -> None:
    """Of three passes in a step, only the last one reduces and waits."""
    for events in events_of("accumulated"):
        _check(events, passes=3 * STEPS)


@pytest.mark.parametrize("way", ["two optimizers", "mixed precision"])
def test_a_step_of_two_optimizers_is_one(
    way: str, events_of: Callable[[str], list[Events]]
) -> None:
    """With bfloat16 and a gradient scaler."""
    for events in events_of(way):
        _check(events)


def test_each_step_has_the_updates_of_both_optimizers(ranks: list[Recorded]) -> None:
    for rank in ranks:
        for name in ("AdamW", "SGD"):
            updates = [e for e in rank.events if e["kind"] == "update" and e["name"] == name]
            assert [e["step"] for e in updates] == list(range(len(WAYS) * STEPS))


@pytest.mark.slow
def test_a_compiled_model_records_all_but_layers(fork_server: ForkServer, tmp_path: Path) -> None:
    """Its forward pass is compiled whole, without our spans; all else is recorded."""
    compiled = _train(fork_server.run, tmp_path / "trace", ["compiled"])
    assert compiled.weights == compiled.plain_weights
    assert len(compiled.ranks) == len(compiled.weights) == 2
    assert compiled.weights[0] == compiled.weights[1]
    for rank in compiled.ranks:
        assert _count(rank.events, "update")["AdamW"] == STEPS
        assert _count(rank.events, "backprop")["backprop"] == STEPS
        assert _reduced_bytes(rank.events) == [GRADIENT] * STEPS


def test_a_users_hook_is_counted_as_its_bucket(events_of: Callable[[str], list[Events]]) -> None:
    """The hook's own reductions are not counted in addition to the bucket."""
    for events in events_of("own hook"):
        _check(events)
        assert "all_reduce" not in _count(events, "reduction")


def test_a_collective_of_its_own_between(events_of: Callable[[str], list[Events]]) -> None:
    """It is recorded in every step, next to the buckets."""
    for events in events_of("clipped"):
        _check(events)
        gathered = [e["step"] for e in events if e["name"] == "all_gather" and e["bytes"] == 4]
        assert len(set(gathered)) == len(gathered) == STEPS
