"""Requests of the parameter-server example: the worker's end and the shard's end match one to one."""

from typing import Any

import pytest
from support.launch.examples import record_example
from support.launch.recording import Recorded

pytestmark = pytest.mark.end_to_end

STEPS, SHARDS, WORKERS = 8, 2, 2
SHARE = 0.7


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder = tmp_path_factory.mktemp("ps") / "trace"
    hot = ["--hot-shard=1", f"--hot-share={SHARE}"]
    arguments = [f"--steps={STEPS}", f"--shards={SHARDS}", *hot]
    return record_example("mpi_parameter_server.py", SHARDS + WORKERS, folder, *arguments)


def _by_request(recorded: list[Recorded], role: str, op: str) -> dict[int, tuple[Any, ...]]:
    """For each request id what this end says of it: shard, worker, step."""
    calls_by_request = {}
    for process in recorded:
        process_row = process.side.process
        for event in process.events:
            if process_row.role == role and event["op"] == op:
                shard = event["shard"]
                worker = process_row.rank if role == "worker" else event["peer"]
                assert event["request"] not in calls_by_request
                calls_by_request[event["request"]] = (shard, worker, event["step"])
    return calls_by_request


def test_roles_and_shards(recorded: list[Recorded]) -> None:
    who = [process.side.process for process in recorded]
    assert [(p.role, p.rank, p.shard) for p in who] == [
        ("ps", 0, 0),
        ("ps", 1, 1),
        ("worker", 0, None),
        ("worker", 1, None),
    ]
    assert all(process.side.complete for process in recorded)


@pytest.mark.parametrize(("asked", "served"), [("pull", "reply"), ("push", "aggregate")])
def test_every_request_is_served_once(recorded: list[Recorded], asked: str, served: str) -> None:
    """By the shard that it went to, for the worker and step that it came from."""
    requests = _by_request(recorded, "worker", asked)
    assert len(requests) == STEPS * SHARDS * WORKERS
    assert requests == _by_request(recorded, "ps", served)


def test_every_request_is_received(recorded: list[Recorded]) -> None:
    asked = _by_request(recorded, "worker", "pull") | _by_request(recorded, "worker", "push")
    assert asked == _by_request(recorded, "ps", "receive")


def test_a_request_is_served_between_its_begin_and_its_end(recorded: list[Recorded]) -> None:
    """All processes share this machine's clock."""
    pulls = {event["request"]: event for process in recorded for event in process.named("pull")}
    for process in recorded:
        for reply in process.named("reply"):
            pull = pulls[reply["request"]]
            assert pull["start_ns"] <= reply["start_ns"]
            assert reply["start_ns"] <= pull["start_ns"] + pull["duration_ns"]


def test_both_ends_tell_the_same_bytes(recorded: list[Recorded]) -> None:
    sent = {e["request"]: e["bytes"] for r in recorded for e in r.events if e["op"] == "push"}
    come = {e["request"]: e["bytes"] for r in recorded for e in r.events if e["op"] == "aggregate"}
    assert sent == come


def test_the_hot_shard_holds_its_share(recorded: list[Recorded]) -> None:
    bytes_by_shard = {}
    for process in recorded:
        for event in process.named("push"):
            bytes_by_shard[event["shard"]] = event["bytes"]
    assert bytes_by_shard[1] / sum(bytes_by_shard.values()) == pytest.approx(SHARE, abs=1e-4)


def test_a_shard_updates_once_a_step(recorded: list[Recorded]) -> None:
    for process in recorded[:SHARDS]:
        assert [event["step"] for event in process.named("apply")] == list(range(STEPS))


def test_queue_depth_is_noted_on_arrival(recorded: list[Recorded]) -> None:
    for process in recorded[:SHARDS]:
        depths = [event["queue_depth"] for event in process.named("receive")]
        assert len(depths) == 2 * STEPS * WORKERS
        assert all(0 <= depth < 2 * WORKERS for depth in depths)
