"""Studies: the numbers that papers and notes agree on, their tags, and the same question to a run."""

from __future__ import annotations

import json

import pytest
from support.samples import SAMPLES
from support.studies import ASKED
from support.tiers import mark_slow

from tracelens import load
from tracelens.cli import main
from tracelens.studies import STUDIES, Study, study
from tracelens.studies.cori import MODELS
from tracelens.studies.figures import TAGS
from tracelens.studies.formats import FORMATS
from tracelens.studies.interleaving import CASES

CORI = {
    "most / mean bytes, 32 servers": 3.14,
    "most / mean bytes, 64 servers": 5.91,
    "effective servers of 32": 10.19,
    "effective servers of 64": 10.83,
    "efficiency 128/32, additive": 0.529,
    "efficiency 128/32, overlap": 0.866,
    "efficiency 128/32, incast": 0.818,
    "efficiency 128/32, event": 0.783,
    "efficiency 512/64, event": 0.230,
    "efficiency 512/64 with 32 KiB chunks, event": 0.957,
    "HEP-CNN efficiency 256/1, overlap": 0.97,
    "HEP-CNN efficiency 256/1, additive": 0.49,
}
PHUB = {
    "step, pipelined, full duplex": 155.2,
    "speedup by overlap alone": 2.10,
    "share of the link that software reaches, 2018-01": 0.541,
    "busiest link each way, a server beside each worker": 339.5,
}


ALLREDUCE = {
    "ring of all gradients at 6 GB/s": 33.5,
    "ring of all gradients at 10 GB/s": 20.1,
    "exposed at 90 % efficiency": 32.5,
    "NCCL / the paper's allreduce, medium": 17.0,
}
EASGD = {
    "Sync 1 over the original, 4 workers": 2.14,
    "Sync 1 over the original, 8 workers": 2.92,
    "Sync 1 over the original, 16 workers": 4.43,
    "Sync 3, iteration": 0.189,
    "Sync 3, communicating": 0.0265,
    "computing, Sync 3 / original": 1.25,
    "speedup of Sync 3": 5.29,
}
INTERLEAVING = {
    "step, ResNet-50 at 2 GB/s": 1005.0,
    "step, ResNet-50 at 0.2 GB/s": 1349.0,
    "step, NT3 at 2 GB/s": 2400.0 + 15.5,
    "ResNet-50 at 0.2 GB/s, 350 ms after 90%": 1.0,
    "first update of a step, NT3 at 2 GB/s": 805.0,
}
NUMBERS = {
    "cori": CORI,
    "phub": PHUB,
    "allreduce": ALLREDUCE,
    "interleaving": INTERLEAVING,
    "easgd": EASGD,
}


@pytest.fixture(scope="module", params=mark_slow(STUDIES, quick=("phub", "allreduce", "easgd")))
def found(request: pytest.FixtureRequest) -> Study:
    """Each study, made once, with the recorded run that it is first asked of."""
    name, *_ = ASKED[request.param]
    return study(request.param, {name: load.open(SAMPLES / name)})


def test_numbers(found: Study) -> None:
    """They are those of the models, to the digits that are known."""
    for name, value in NUMBERS[found.name].items():
        assert found.figure(name).value == pytest.approx(value, rel=0.01), name


def test_absorption(found: Study) -> None:
    """What the paused run's trace says is what the run without the pause says."""
    if found.name == "interleaving":
        for case in CASES:
            truth = found.figure(case.name).value
            assert found.figure(f"{case.name}, by trace").value == pytest.approx(truth, abs=0.03)


def test_tags(found: Study) -> None:
    """Every number has one; what a model was fitted to is a consistency check."""
    figures = [one for section in found.sections for one in section.figures]
    assert {one.tag for one in figures} <= TAGS.keys()
    fitted = {f"efficiency 512/64, {name}" for name in MODELS} if found.name == "cori" else set()
    assert all(found.figure(name).tag == "consistency check" for name in fitted)


def test_formats(found: Study) -> None:
    """Text has 80 columns; every format has every number."""
    text = FORMATS["text"](found)
    assert max(map(len, text.splitlines())) <= 80
    read = json.loads(FORMATS["json"](found))
    assert read["format"] == "tracelens.study/1"
    names = [one["name"] for section in read["sections"] for one in section["figures"]]
    assert len(names) == len(set(names))
    assert all(name in FORMATS["markdown"](found) for name in names)


def test_what_a_trace_says(found: Study) -> None:
    """Overlap and incast have other shares; a recorded run is asked the same."""
    if found.name != "cori":
        pytest.skip("asks nothing of a trace")
    busy, hidden = "fullest server at work, a run with", "of that beside compute, a run with"
    assert found.figure(f"{busy} overlap").value == pytest.approx(0.87, abs=0.02)
    assert found.figure(f"{hidden} overlap").value > 0.7
    assert found.figure(f"{busy} incast").value == pytest.approx(0.18, abs=0.03)
    assert found.figure(f"{hidden} incast").value < 0.1
    assert found.figure("of that beside compute, the run given").tag == "measured"


def test_what_recorded_runs_say(found: Study) -> None:
    """A sweep has a fastest algorithm for each size; the original EASGD waits for its turn most."""
    measured = [
        one for section in found.sections for one in section.figures if one.tag == "measured"
    ]
    assert measured
    if found.name == "allreduce":
        assert sum("is fastest" in one.name for one in measured) >= 5
    if found.name == "easgd":
        parts = {one.name: one.value for one in measured}
        turn = parts["waiting for the turn, of the steps"]
        assert 0.5 < turn <= parts["communication not hidden, of the steps"]
        assert turn > max(share for name, share in parts.items() if "under way" in name)
        assert parts["iteration, served at once"] < parts["iteration, all workers in turn"]
    if found.name == "phub":
        parts = {one.name: one.value for one in measured}
        speedup = parts["step of the run given"] / parts["step with chunks, replayed"]
        assert parts["speedup by chunks"] == pytest.approx(speedup)
        assert parts["step with chunks, at least"] <= parts["step with chunks, replayed"]


def test_several_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is asked, under its name; what is hidden beside computing is no loss."""
    places = [str(SAMPLES / name) for name in ("easgd-original", "easgd-async")]
    assert main(["study", "easgd", "--format", "json", *(f"--trace={one}" for one in places)]) == 0
    *_, original, beside = json.loads(capsys.readouterr().out)["sections"]
    assert [places[0] in original["question"], places[1] in beside["question"]] == [True, True]
    exposed, under_way = (
        next(one["value"] for one in beside["figures"] if part in one["name"])
        for part in ("not hidden", "weights up under way")
    )
    assert exposed < under_way <= 1


def test_a_run_without_servers_has_no_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in a sentence."""
    assert main(["study", "phub", "--trace", str(SAMPLES / "ddp-healthy")]) == 3
    assert "expected one with parameter servers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["allreduce", "easgd"])
def test_a_run_of_something_else(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 3."""
    assert main(["study", name, "--trace", str(SAMPLES / "ps-hot-shard")]) == 3
    assert "expected one" in capsys.readouterr().err
