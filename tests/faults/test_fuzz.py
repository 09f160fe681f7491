"""Files of every kind, damaged at random with fixed seeds: a short run of `make fuzz`.

And the files that once made a reader fail, which `tests/data/fuzz` keeps.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.fuzz import __main__ as program
from support.fuzz.judge import Failure, Judge, changed
from support.fuzz.pieces import run_piece
from support.fuzz.subjects import CORPUS, SUBJECTS, bases, found
from support.turns import select_turn

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = 24
QUICK_INPUTS = range(31, 34)  # input 32 is also opened as one rank of a run
SEED = 20_000  # long runs use another seed
KEPT = [
    pytest.param(name, path, id=f"{name}-{path.name}")
    for name in SUBJECTS
    for path in found(SUBJECTS[name])
]


@pytest.mark.parametrize("name", SUBJECTS)
def test_few_damaged_files_do_no_harm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three inputs, read in this process."""
    monkeypatch.chdir(tmp_path)
    subject = SUBJECTS[name]
    sound = bases(subject)
    judge = Judge(subject, tmp_path)
    outcomes = [
        judge.look(changed(subject, SEED, number, sound), number) for number in QUICK_INPUTS
    ]
    assert {*outcomes} <= {"read", "noted", "refused"}
    assert {*outcomes} & {"noted", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("name", select_turn(list(SUBJECTS)))
def test_nothing_that_is_damaged_does_harm(name: str) -> None:
    """Read, read with notes, or refused in a sentence; and damage is not passed over."""
    piece = run_piece(name, INPUTS, 0, SEED)
    assert piece.failures == {}
    assert sum(piece.became.values()) == INPUTS
    assert piece.became["noted"] + piece.became["refused"] > INPUTS // 4


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


@pytest.mark.slow
def test_counts_add_up_over_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run goes on where the first ended."""
    journal = tmp_path / "journal.jsonl"
    for inputs in ("5", "10"):
        monkeypatch.setattr(
            "sys.argv", ["fuzz", "note", "--inputs", inputs, "--journal", str(journal)]
        )
        assert program.main() == 0
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(row["first"], row["count"]) for row in rows] == [(0, 5), (5, 5)]
