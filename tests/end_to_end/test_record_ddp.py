"""`tracelens record` sees a DDP training whose script does not mention TraceLens."""

import sys
from pathlib import Path

import pytest
from support.imports import skip_without
from support.launch.recording import Recorded, read_all
from support.launch.torchrun import run_ranks, torchrun_command

import tracelens as tl
from tracelens.accounting import phases
from tracelens.model.trace import Trace

skip_without("torch")
pytestmark = pytest.mark.end_to_end


SCRIPT = Path(__file__).parents[1] / "hooks" / "torch" / "scripts" / "plain_ddp_training.py"
STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("record") / "trace"
    tracelens = str(Path(sys.executable).with_name("tracelens"))
    training = torchrun_command(SCRIPT, 2)
    run_ranks([tracelens, "record", "--out", str(folder), "--detail", "layer", "--", *training])
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Recorded]:
    return read_all(folder)


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return tl.open(folder)


def test_only_the_ranks_are_recorded(ranks: list[Recorded]) -> None:
    """Neither torchrun nor the workers that load data are ranks."""
    assert [(r.side.process.role, r.side.process.rank) for r in ranks] == [
        ("worker", 0),
        ("worker", 1),
    ]
    assert {recorded.side.process.world for recorded in ranks} == {2}


def test_every_step_of_every_rank_has_every_phase(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        assert [step["step"] for step in recorded.named("step")] == list(range(STEPS))
        for kind in ("data", "forward", "backprop", "reduction", "wait", "update"):
            steps = {event["step"] for event in recorded.events if event["kind"] == kind}
            assert set(range(STEPS)) <= steps, kind


def test_layers_carry_the_names_of_the_users_model(ranks: list[Recorded]) -> None:
    for recorded in ranks:
        assert {"body", "head"} <= {event["name"] for event in recorded.events}


def test_reductions_are_matched_across_ranks(trace: Trace) -> None:
    arrivals = trace.arrivals
    assert arrivals.height >= 2 * STEPS
    assert arrivals["arrived"].to_list() == arrivals["expected"].to_list() == [2] * arrivals.height


def test_the_phases_of_each_step_are_told_apart(trace: Trace) -> None:
    times = phases.run(trace).times
    for category in ("data", "forward", "backprop", "update"):
        found = times.filter(times["category"] == category)
        assert found.height == 2 * STEPS, category
        assert min(found["ns"]) > 0


def test_steps_carry_the_samples_of_their_batches(trace: Trace) -> None:
    assert trace.steps["samples"].to_list() == [8.0] * (2 * STEPS)
