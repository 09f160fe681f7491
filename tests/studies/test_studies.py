"""Studies: the numbers that papers and notes agree on, their tags, and the same question to a run."""

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
def made_study(request: pytest.FixtureRequest) -> Study:
    """Each study, made once, with the recorded run that it is first asked of."""
    name, *_ = ASKED[request.param]
    return study(request.param, {name: load.open(SAMPLES / name)})


def test_figures_are_those_of_the_models(made_study: Study) -> None:
    """They are those of the models, to the digits that are known."""
    for name, value in NUMBERS[made_study.name].items():
        assert made_study.find_figure(name).value == pytest.approx(value, rel=0.01), name


def test_absorbed_pauses_agree_with_the_run_without_them(made_study: Study) -> None:
    """What the paused run's trace says is what the run without the pause says."""
    if made_study.name == "interleaving":
        for case in CASES:
            truth = made_study.find_figure(case.name).value
            assert made_study.find_figure(f"{case.name}, by trace").value == pytest.approx(
                truth, abs=0.03
            )


def test_each_figure_has_a_tag(made_study: Study) -> None:
    """Every number has one; what a model was fitted to is a consistency check."""
    figures = [figure for section in made_study.sections for figure in section.figures]
    assert {figure.tag for figure in figures} <= TAGS.keys()
    fitted = (
        {f"efficiency 512/64, {name}" for name in MODELS} if made_study.name == "cori" else set()
    )
    assert all(made_study.find_figure(name).tag == "consistency check" for name in fitted)


def test_every_format_holds_every_figure(made_study: Study) -> None:
    """Text has 80 columns; every format has every number."""
    text = FORMATS["text"](made_study)
    assert max(map(len, text.splitlines())) <= 80
    read = json.loads(FORMATS["json"](made_study))
    assert read["format"] == "tracelens.study/1"
    names = [figure["name"] for section in read["sections"] for figure in section["figures"]]
    assert len(names) == len(set(names))
    assert all(name in FORMATS["markdown"](made_study) for name in names)


def test_what_a_trace_says(made_study: Study) -> None:
    """Overlap and incast have other shares; a recorded run is asked the same."""
    if made_study.name != "cori":
        pytest.skip("asks nothing of a trace")
    busy, hidden = "fullest server at work, a run with", "of that beside compute, a run with"
    assert made_study.find_figure(f"{busy} overlap").value == pytest.approx(0.87, abs=0.02)
    assert made_study.find_figure(f"{hidden} overlap").value > 0.7
    assert made_study.find_figure(f"{busy} incast").value == pytest.approx(0.18, abs=0.03)
    assert made_study.find_figure(f"{hidden} incast").value < 0.1
    assert made_study.find_figure("of that beside compute, the run given").tag == "measured"


def test_what_recorded_runs_say(made_study: Study) -> None:
    """A sweep has a fastest algorithm for each size; the original EASGD waits for its turn most."""
    measured = [
        figure
        for section in made_study.sections
        for figure in section.figures
        if figure.tag == "measured"
    ]
    assert measured
    if made_study.name == "allreduce":
        assert sum("is fastest" in figure.name for figure in measured) >= 5
    if made_study.name == "easgd":
        values_by_name = {figure.name: figure.value for figure in measured}
        turn = values_by_name["waiting for the turn, of the steps"]
        assert 0.5 < turn <= values_by_name["communication not hidden, of the steps"]
        assert turn > max(share for name, share in values_by_name.items() if "under way" in name)
        assert (
            values_by_name["iteration, served at once"]
            < values_by_name["iteration, all workers in turn"]
        )
    if made_study.name == "phub":
        values_by_name = {figure.name: figure.value for figure in measured}
        speedup = (
            values_by_name["step of the run given"] / values_by_name["step with chunks, replayed"]
        )
        assert values_by_name["speedup by chunks"] == pytest.approx(speedup)
        assert (
            values_by_name["step with chunks, at least"]
            <= values_by_name["step with chunks, replayed"]
        )


def test_each_given_run_is_studied(capsys: pytest.CaptureFixture[str]) -> None:
    """Each run is studied under its name; hidden communication is no loss."""
    paths = [str(SAMPLES / name) for name in ("easgd-original", "easgd-async")]
    assert main(["study", "easgd", "--format", "json", *(f"--trace={path}" for path in paths)]) == 0
    *_, original, asynchronous = json.loads(capsys.readouterr().out)["sections"]
    assert [paths[0] in original["question"], paths[1] in asynchronous["question"]] == [True, True]
    exposed, under_way = (
        next(path["value"] for path in asynchronous["figures"] if part in path["name"])
        for part in ("not hidden", "weights up under way")
    )
    assert exposed < under_way <= 1


def test_a_run_without_servers_has_no_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "phub", "--trace", str(SAMPLES / "ddp-healthy")]) == 3
    assert "expected one with parameter servers" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["allreduce", "easgd"])
def test_a_study_refuses_a_run_of_another_kind(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", name, "--trace", str(SAMPLES / "ps-hot-shard")]) == 3
    assert "expected one" in capsys.readouterr().err
