"""Bytes of files of every kind, damaged at random with fixed seeds, as one rank of a run.

And the files that once made a reader fail, which `tests/data/fuzz` keeps. `test_hostile.py` gives files
with extreme values to every verb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fuzz.judge import Failure, Judge, change_input
from support.fuzz.subjects import CORPUS, SUBJECTS, bases, list_failing_files
from support.tiers import few_or_many

if TYPE_CHECKING:
    from pathlib import Path

FIRST = 31  # input 32 is also opened as one rank of a run
SEED = 20_000
KEPT = [
    pytest.param(name, path, id=f"{name}-{path.name}")
    for name in SUBJECTS
    for path in list_failing_files(SUBJECTS[name])
]


@pytest.mark.parametrize("inputs", few_or_many(3, 24))
@pytest.mark.parametrize("name", SUBJECTS)
def test_damaged_files_do_no_harm(
    name: str, inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, read with notes, or refused in a sentence; and damage is not passed over."""
    monkeypatch.chdir(tmp_path)
    subject = SUBJECTS[name]
    sound = bases(subject)
    judge = Judge(subject, tmp_path)
    outcomes = [
        judge.look(change_input(subject, SEED, number, sound), number)
        for number in range(FIRST, FIRST + inputs)
    ]
    assert {*outcomes} <= {"read", "noted", "refused"}
    assert {*outcomes} & {"noted", "refused"}


@pytest.mark.parametrize(("name", "path"), KEPT)
def test_what_once_failed(
    name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all verbs, as one rank of a run."""
    monkeypatch.chdir(tmp_path)
    judge = Judge(SUBJECTS[name], tmp_path)
    for number in (1, 0):
        assert judge.look(path.read_bytes(), number) in {"noted", "refused"}


def test_every_kind_has_a_sound_file() -> None:
    assert {name for name in SUBJECTS if bases(SUBJECTS[name])} == set(SUBJECTS)
    assert {folder.name for folder in CORPUS.iterdir()} == set(SUBJECTS)


@pytest.mark.parametrize("harm", ["a traceback", "a changed file", "a lost rank"])
def test_harm_would_be_seen(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a run without failures would show nothing."""
    subject = SUBJECTS["native"]
    judge = Judge(subject, tmp_path)
    sound = bases(subject)[0]
    assert judge.look(sound, 0) in {"read", "noted"}
    if harm == "a traceback":
        monkeypatch.setattr("tracelens.load.prepare", lambda _trace: [].pop())
    elif harm == "a changed file":
        (tmp_path / "canary" / "letter.txt").write_text("changed")
    else:
        (tmp_path / "run" / "worker-00000-1000.arrow").write_bytes(b"")
    with pytest.raises(Failure):
        judge.look(sound, 0)
