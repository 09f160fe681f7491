"""Messages between two ranks of torch.distributed are recorded at both ends, and match."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.imports import skip_without
from support.launch.recording import Recorded, read_all

skip_without("torch")
pytestmark = pytest.mark.end_to_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.launch.forked import RunRanks

SCRIPT = Path(__file__).parent / "scripts" / "direct_messages.py"
# What each rank sends to the other in a group: tag, number, bytes.
SENT = [
    {(3, 0, 40), (0, 0, 8), (0, 1, 40)},
    {(0, 0, 40), (0, 1, 8), (0, 2, 40)},
]


@pytest.fixture(scope="module")
def ranks(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder = tmp_path_factory.mktemp("messages") / "trace"
    done = run_ranks(SCRIPT, 2, folder, hooks=True)
    assert "TraceLens: " not in done.stderr
    return read_all(folder)


def _messages(recorded: Recorded, op: str) -> Iterator[dict[str, Any]]:
    return (event for event in recorded.events if event["op"] == op)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_is_recorded_once_at_both_ends(ranks: list[Recorded], rank: int) -> None:
    """With tag, number and size alike, in both groups; also where anybody might have sent it."""
    for op, own_rank in (("send", rank), ("recv", 1 - rank)):
        messages = list(_messages(ranks[own_rank], op))
        assert {event["status"] for event in messages} == {"closed"}
        assert {event["peer"] for event in messages} == {1 - own_rank}
        for communicator in {event["communicator"] for event in messages}:
            of_group = [e for e in messages if e["communicator"] == communicator]
            keys = Counter((e["key"], e["seq"], e["bytes"]) for e in of_group)
            assert keys == Counter(SENT[rank])
        assert len(messages) == 2 * len(SENT[rank])


def test_they_end_when_they_have_come(ranks: list[Recorded]) -> None:
    """On a track of their own, while the thread waits; none is received before it is sent."""
    names = ("communicator", "key", "seq")
    for sender, receiver in (ranks, ranks[::-1]):
        flights = {thread.index: thread.in_flight for thread in sender.side.threads}
        sent = {tuple(e[n] for n in names): e for e in _messages(sender, "send")}
        assert all(flights[event["thread"]] for event in sent.values())
        uids = {c.index: c.uid for c in sender.side.communicators}
        mine = {c.index: uids[c.index] == c.uid for c in receiver.side.communicators}
        assert all(mine.values())
        for event in _messages(receiver, "recv"):
            began = sent[tuple(event[n] for n in names)]["start_ns"]
            assert event["start_ns"] + event["duration_ns"] >= began


def test_they_end_within_the_wait_for_them(ranks: list[Recorded]) -> None:
    """That is all that says which wait it was."""
    for rank in ranks:
        waits = [
            (event["start_ns"], event["start_ns"] + event["duration_ns"])
            for event in rank.events
            if event["name"] == "wait for collectives"
        ]
        assert waits
        for event in rank.events:
            if event["op"] in {"send", "recv"}:
                end = event["start_ns"] + event["duration_ns"]
                assert any(begin <= end <= over for begin, over in waits)
