"""`tracelens record` sees FSDP2: weights gathered, gradients scattered, and one forward pass a step."""

from collections import Counter
from pathlib import Path

import pytest
from support.imports import skip_without
from support.launch.examples import run_example
from support.launch.recording import Recorded, read_all

skip_without("torch")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

STEPS, SHARDED = 12, 4  # three blocks, and what is left of the model


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    folder: Path = tmp_path_factory.mktemp("fsdp") / "t"
    done = run_example("fsdp_mlp.py", 2, folder, f"--steps={STEPS}")
    assert done.returncode == 0, done.stderr
    assert "FSDP" in done.stderr
    return read_all(folder)


def test_collectives_of_both_ranks_match(ranks: list[Recorded]) -> None:
    """Each sharded part's gradients are scattered once a step, its weights gathered at least once."""
    calls = [
        Counter(
            (event["op"], event["communicator"], event["seq"])
            for event in recorded.events
            if event["op"] in ("all_gather", "reduce_scatter")
        )
        for recorded in ranks
    ]
    assert calls[0] == calls[1]
    assert set(calls[0].values()) == {1}
    ops = Counter(op for op, _, _ in calls[0])
    assert ops["reduce_scatter"] == SHARDED * STEPS
    assert ops["all_gather"] >= SHARDED * STEPS


def test_the_model_is_seen_as_a_whole(ranks: list[Recorded]) -> None:
    """Not each part that was sharded by itself."""
    for recorded in ranks:
        kinds = Counter(event["kind"] for event in recorded.events if event["type"] == "span")
        assert (kinds["forward"], kinds["backprop"], kinds["update"]) == (STEPS,) * 3
