"""Ranks that train together record reductions that match, and do not see that they are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.imports import skip_without
from support.launch.recording import Recorded, read_all

skip_without("torch")
pytestmark = pytest.mark.end_to_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.launch.forked import RunRanks

SCRIPTS = Path(__file__).with_name("scripts")
STEPS = 4


@pytest.fixture(scope="module")
def ranks(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder = tmp_path_factory.mktemp("ddp") / "trace"
    run_ranks(SCRIPTS / "ddp_training.py", 2, folder, PYTHONWARNINGS="error")
    return read_all(folder)


def _of_kind(recorded: Recorded, kind: str) -> list[dict[str, Any]]:
    return [event for event in recorded.events if event["kind"] == kind]


def _steps(events: Iterable[dict[str, Any]]) -> set[int]:
    return {event["step"] for event in events}


def test_reductions_match_across_ranks(ranks: list[Recorded]) -> None:
    """Both ranks name the same communicator and number, measure and place each bucket alike."""
    identities = [
        [
            (
                recorded.side.communicators[bucket["communicator"]].uid,
                bucket["seq"],
                bucket["step"],
                bucket["bucket"],
                bucket["bytes"],
            )
            for bucket in recorded.named("bucket")
        ]
        for recorded in ranks
    ]
    assert identities[0] == identities[1]
    numbers = [event["seq"] for event in _of_kind(ranks[0], "reduction")]
    assert numbers == list(range(len(numbers)))  # buckets, and what DDP and the script do besides
    assert _steps(ranks[0].named("bucket")) == set(range(STEPS))
    assert len({bucket for *_, bucket, _ in identities[0]}) > 1


def test_a_step_reduces_the_whole_gradient(ranks: list[Recorded]) -> None:
    weights = 32 * 128 + 128 + 128 * 128 + 128 + 128 * 4 + 4
    for step in range(STEPS):
        buckets = [b for b in ranks[0].named("bucket") if b["step"] == step]
        assert sum(bucket["bytes"] for bucket in buckets) == 4 * weights


def test_communicators_hold_the_global_ranks(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        (communicator,) = recorded.side.communicators
        assert communicator.ranks == [0, 1]


@pytest.mark.parametrize("kind", ["data", "forward", "backprop", "reduction", "wait", "update"])
def test_every_rank_has_every_phase_in_every_step(ranks: list[Recorded], kind: str) -> None:
    assert [recorded.side.process.rank for recorded in ranks] == [0, 1]
    for recorded in ranks:
        assert set(range(STEPS)) <= _steps(_of_kind(recorded, kind))


def test_reductions_are_in_flight_and_begin_while_gradients_are_computed(
    ranks: list[Recorded],
) -> None:
    for recorded in ranks:
        tracks = {t.index: t.in_flight for t in recorded.side.threads}
        passes = {e["step"]: e for e in recorded.named("backprop")}
        for bucket in recorded.named("bucket"):
            assert tracks[bucket["thread"]]
            around = passes[bucket["step"]]
            begin = around["start_ns"]
            assert begin <= bucket["start_ns"] <= begin + around["duration_ns"]


def test_waiting_begins_where_backprop_ends(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        passes = recorded.named("backprop")
        waits = recorded.named("wait for reductions")
        assert len(waits) == STEPS
        assert len(passes) == STEPS + 1
        for before, wait in zip(passes, waits, strict=False):
            assert wait["start_ns"] >= before["start_ns"] + before["duration_ns"]
            assert wait["op"] is None


def test_without_synchronisation_there_is_nothing_to_wait_for(ranks: list[Recorded]) -> None:
    """The last backward pass of the script is under no_sync."""
    for recorded in ranks:
        assert STEPS not in _steps(recorded.named("wait for reductions"))
        assert STEPS not in _steps(recorded.named("bucket"))


def test_nothing_is_left_open_or_failed(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        assert recorded.side.complete
        unfinished = [e for e in recorded.events if e["status"] != "closed"]
        assert [(e["kind"], e["step"]) for e in unfinished] == [("step", STEPS)]


def test_weights_are_the_same_bit_for_bit(tmp_path: Path, run_ranks: RunRanks) -> None:
    """Whether recorded or not, with DDP's own reduction or the user's, early or late."""
    finished = run_ranks(SCRIPTS / "ddp_same_weights.py", 3, tmp_path / "trace")
    lines = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 3
    for line in lines:
        assert all(json.loads(line).values()), line
    for recorded in read_all(tmp_path / "trace"):
        assert len(recorded.named("bucket")) > 3 * 4
