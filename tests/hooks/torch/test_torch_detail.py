"""The detail of a model's recording changes while it trains, and its results do not."""

import time
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one
from support.launch.torch_training import Training, loader

import tracelens as tl
from tracelens.schema.detail import REQUEST_FILE, DetailRequest, write_request

LAYERS = {"0", "1", "2"}


def _names_by_step(events: list[dict[str, Any]]) -> dict[int, set[str]]:
    names: dict[int, set[str]] = {}
    for event in events:
        if event["kind"] in {"forward", "backprop"}:
            names.setdefault(event["step"], set()).add(event["name"])
    return names


def _train(folder: Path, detail: str, level: str) -> dict[int, set[str]]:
    """Train three steps at `detail`, three at the requested `level` and three as before."""
    training, batches = Training(), iter(loader(9))
    tl.attach(training.model, optimizer=training.optimizer, detail=detail)
    for step, batch in enumerate(batches):
        if step == 3:
            begin_ns = time.time_ns()
            write_request(folder, DetailRequest(begin_ns, begin_ns + 60 * 10**9, level))
            time.sleep(1.1)  # it looks once a second
        if step == 6:
            (folder / REQUEST_FILE).unlink()
            time.sleep(1.1)
        with tl.step(step):
            training.step(batch)
    tl.stop()
    recorded = read_one(folder)
    return _names_by_step(recorded.events)


@pytest.mark.parametrize("level", ["layer", pytest.param("op", marks=pytest.mark.slow)])
def test_layers_are_recorded_as_long_as_requested(level: str, trace: Path) -> None:
    names = _train(trace, "phase", level)
    # The request is seen at the end of the step in which it was made.
    assert [names[step] >= LAYERS for step in range(9)] == [False] * 4 + [True] * 3 + [False] * 2
    assert [("linear" in names[step]) for step in range(4, 7)] == [level == "op"] * 3


@pytest.mark.slow
def test_a_model_that_is_recorded_closer_stays_so(trace: Path) -> None:
    names = _train(trace, "op", "layer")
    assert all(LAYERS | {"linear"} <= names[step] for step in range(9))
