"""Every committed sample is explained by what is planted in it."""

from dataclasses import replace

import pytest
from support.samples import SAMPLES, Sample, differences, explain, manifest, sample_report

from tracelens.model.result import Report

MEGABYTE = 10**6


@pytest.fixture(scope="module", params=manifest(), ids=lambda sample: sample.name)
def explained(request: pytest.FixtureRequest) -> tuple[Sample, Report]:
    return request.param, sample_report(request.param.name)


def test_planted_fault_is_the_first_finding(explained: tuple[Sample, Report]) -> None:
    """The first finding names the planted fault; a healthy run has no fault."""
    sample, report = explained
    assert differences(report, sample.expect) == []


def test_hardly_any_time_is_uninstrumented(explained: tuple[Sample, Report]) -> None:
    """The waterfall sums to all of the time; of a twentieth of it, or what is said, nothing is known."""
    sample, report = explained
    efficiency = report.efficiency
    assert efficiency
    shares = {bar.cause: bar.share for bar in efficiency.waterfall}
    assert efficiency.achieved + sum(shares.values()) == pytest.approx(1, abs=1e-9)
    assert efficiency.uninstrumented < sample.unknown


def test_samples_stay_small() -> None:
    """All samples together stay under 10 MB."""
    size = sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file())
    assert size < 10 * MEGABYTE


def test_every_folder_is_in_the_manifest() -> None:
    """No sample lies there without a word on how it was recorded."""
    folders = {path.name for path in SAMPLES.iterdir() if path.is_dir()}
    assert folders == {sample.name for sample in manifest()}


@pytest.mark.slow
def test_an_example_fails_if_its_fault_is_not_found(capfd: pytest.CaptureFixture[str]) -> None:
    """`make example-NAME` prints the report, and succeeds only if it names the planted fault."""
    (sample,) = (sample for sample in manifest() if sample.name == "ddp-slow-backprop")
    explain(sample, sample.folder)
    assert "rank 1" in capfd.readouterr().out
    other = replace(sample, expect={**sample.expect, "ranks": [0]})
    with pytest.raises(SystemExit, match=r"not found: ranks: planted \[0\], found \[1\]"):
        explain(other, sample.folder)
    explain(replace(sample, expect={}), sample.folder)
    assert "a fault where none is planted" in capfd.readouterr().out
