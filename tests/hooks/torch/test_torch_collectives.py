"""Collectives of torch.distributed that a program calls itself are recorded, each once, and match."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.imports import skip_without
from support.launch.recording import Recorded, read_all

import tracelens as tl

skip_without("torch")
pytestmark = pytest.mark.end_to_end

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.launch.forked import RunRanks

SCRIPT = Path(__file__).parent / "scripts" / "direct_collectives.py"
FLOATS = 4 * 4
# What the program calls in each round: name, operation, bytes.
ROUND = [
    ("all_reduce", "allreduce", FLOATS),
    ("broadcast", "broadcast", FLOATS),
    ("reduce", "reduce", FLOATS),
    ("all_gather", "all_gather", FLOATS),
    ("all_gather_into_tensor", "all_gather", FLOATS),
    ("reduce_scatter_tensor", "reduce_scatter", 2 * FLOATS),
    ("all_to_all_single", "all_to_all", 2 * FLOATS),
    ("gather", "gather", FLOATS),
    ("scatter", "scatter", FLOATS),
    ("barrier", "barrier", None),
]
ASYNC = [("all_reduce", "allreduce", 4000), ("all_reduce", "allreduce", 12)]
BARRIER = ROUND[-1]


@pytest.fixture(scope="module")
def folder(run_ranks: RunRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("direct") / "trace"
    done = run_ranks(SCRIPT, 2, folder, hooks=True)
    assert "TraceLens: " not in done.stderr
    by_record = "record" in done.args  # which then says what it recorded
    assert ("(process group of 2 ranks)" in done.stderr) == by_record
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Recorded]:
    return read_all(folder)


def _reductions(recorded: Recorded) -> list[dict[str, Any]]:
    found = [event for event in recorded.events if event["kind"] == "reduction"]
    return sorted(found, key=lambda event: (event["communicator"], event["seq"]))


def _names_and_bytes(events: Iterable[dict[str, Any]]) -> list[tuple[str, str, int | None]]:
    return [(event["name"], event["op"], event["bytes"]) for event in events]


def test_each_is_recorded_once_with_its_number(ranks: list[Recorded]) -> None:
    """Per communicator counted on, in the order of the program."""
    for recorded in ranks:
        groups = groupby(_reductions(recorded), key=lambda event: event["communicator"])
        world, pair = (list(events) for _, events in groups)
        assert _names_and_bytes(world)[: 2 * len(ROUND)] == ROUND * 2
        assert _names_and_bytes(pair) == ROUND
        for events in (world, pair):
            assert [event["seq"] for event in events] == list(range(len(events)))
        assert _names_and_bytes(world)[2 * len(ROUND) :] == [*ASYNC, BARRIER]


def test_ranks_agree_on_communicators(ranks: list[Recorded]) -> None:
    """Two groups of the same ranks are two."""
    uids = [[c.uid for c in recorded.side.communicators] for recorded in ranks]
    assert uids[0] == uids[1]
    assert len(set(uids[0])) == 2
    assert {tuple(c.ranks) for c in ranks[0].side.communicators} == {(0, 1)}


def test_they_are_in_flight_while_the_program_waits(ranks: list[Recorded]) -> None:
    """Also blocking ones: the thread has a wait, which ends no earlier than the operation."""
    for recorded in ranks:
        flights = {thread.index: thread.in_flight for thread in recorded.side.threads}
        reductions = _reductions(recorded)
        assert {event["status"] for event in reductions} == {"closed"}
        assert all(flights[event["thread"]] for event in reductions)
        waits = recorded.named("wait for collectives")
        assert {event["kind"] for event in waits} == {"wait"}
        assert not any(flights[event["thread"]] for event in waits)
        assert len(waits) == len(reductions)


def test_they_match_across_ranks(folder: Path) -> None:
    arrivals = tl.open(folder).arrivals
    assert arrivals["arrived"].to_list() == arrivals["expected"].to_list() == [2] * arrivals.height
    assert arrivals.height >= 3 * len(ROUND) + 3
