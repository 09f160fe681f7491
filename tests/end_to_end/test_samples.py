"""Every committed sample is explained by what is planted in it."""

from __future__ import annotations

import pytest
from support.samples import SAMPLES, Sample, differences, manifest

from tracelens.analyses import analyze
from tracelens.load import open as open_trace

MEGABYTE = 10**6


@pytest.mark.parametrize("sample", manifest(), ids=lambda sample: sample.name)
def test_planted_fault_is_the_first_finding(sample: Sample) -> None:
    """The first finding names the planted fault; a healthy run has no fault."""
    report = analyze(open_trace(sample.folder))
    assert differences(report, sample.expect) == []


def test_samples_stay_small() -> None:
    """All samples together stay under 10 MB."""
    size = sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file())
    assert size < 10 * MEGABYTE


def test_every_folder_is_in_the_manifest() -> None:
    """No sample lies there without a word on how it was recorded."""
    folders = {path.name for path in SAMPLES.iterdir() if path.is_dir()}
    assert folders == {sample.name for sample in manifest()}
