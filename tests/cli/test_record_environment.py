"""What a recorded command finds in its environment: ours in front, all that was there still there."""

import os
from pathlib import Path

import pytest
from support.launch.recording import clean_environment

import tracelens_instrument
from tracelens.cli import record

AUTOLOAD = str(Path(tracelens_instrument.__file__).parent / "autoload")
FOLDER = Path("/somewhere/today")


@pytest.fixture(autouse=True)
def _nobody_launched_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (set(os.environ) - set(clean_environment())) | {"PYTHONPATH"}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("theirs", "paths"),
    [
        (None, [AUTOLOAD]),
        ("", [AUTOLOAD]),
        ("/a:/b", [AUTOLOAD, "/a", "/b"]),
        (f"{AUTOLOAD}:/a", [AUTOLOAD, "/a"]),
        (":/a", [AUTOLOAD, "", "/a"]),  # an empty path is the working directory
    ],
)
def test_our_folder_is_first_on_the_path(
    theirs: str | None, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if theirs is not None:
        monkeypatch.setenv("PYTHONPATH", theirs)
    assert record.make_environment(FOLDER)["PYTHONPATH"].split(os.pathsep) == paths


def test_the_rest_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIRS", "value")
    variables_before = dict(os.environ)
    variables = record.make_environment(FOLDER)
    assert dict(os.environ) == variables_before
    changed = {name for name in variables if variables[name] != variables_before.get(name)}
    ours = {"TRACELENS_DIR", "TRACELENS_HOOKS", "TRACELENS_JOB", "TRACELENS_ALL_RANKS"}
    assert changed == ours | {"PYTHONPATH"}
    assert variables_before.keys() <= variables.keys()


@pytest.mark.parametrize(
    ("given", "job"),
    [
        ({}, "today"),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"TRACELENS_JOB": "mine", "SLURM_JOB_ID": "12"}, "mine"),
    ],
)
def test_all_ranks_and_hosts_name_the_job_alike(
    given: dict[str, str], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may have a recorder of its own, and communicators are known by it: nothing is drawn."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert record.make_environment(FOLDER)["TRACELENS_JOB"] == job
