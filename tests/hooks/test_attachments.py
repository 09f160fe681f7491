"""What hooks attach to is reported to `tracelens record`, which names a file in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracelens_instrument.core import attachments
from tracelens_instrument.hooks import attached

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "_ATTACHED", [])
    monkeypatch.delenv(attachments.ATTACHED_VARIABLE, raising=False)


def test_each_attached_object_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = tmp_path / "asking"
    asking.touch()
    monkeypatch.setenv(attachments.ATTACHED_VARIABLE, str(asking))
    attachments.note_attached("a model")
    attachments.note_attached("a communicator")
    assert asking.read_text() == "a model\na communicator\n"


def test_a_framework_that_is_used_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = tmp_path / "asking"
    asking.touch()
    monkeypatch.setenv(attachments.ATTACHED_VARIABLE, str(asking))
    attachments.note_used("mpi4py")
    assert asking.read_text() == f"{attachments.USED}mpi4py\n"
    assert attached() == []


def test_attachments_are_noted_without_a_file() -> None:
    attachments.note_attached("a model")
    assert attached() == ["a model"]


@pytest.mark.parametrize("missing", ["file", "no folder/file"])
def test_a_file_that_is_not_there_is_not_made(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another host than the one of `tracelens record`; the training goes on."""
    monkeypatch.setenv(attachments.ATTACHED_VARIABLE, str(tmp_path / missing))
    attachments.note_attached("a model")
    assert attached() == ["a model"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("framework", ["TensorFlow", "JAX"])
def test_a_framework_of_which_nothing_is_recorded_is_named(framework: str) -> None:
    """Beside others that are recorded; and not once something of it is."""
    used = [f"{attachments.USED}{framework}", f"{attachments.USED}mpi4py", "MPI with 2 ranks"]
    (sentence,) = attachments.list_unrecorded_frameworks(used)
    assert sentence.startswith(f"{framework} was used, nothing of it is recorded: ")
    assert attachments.list_unrecorded_frameworks([*used, f"{framework}'s steps"]) == []
