"""A long bench can be stopped: what is done is kept, and the next one goes on from there."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.labelled.kept import Performer

done: list[int] = []


def perform(task: int) -> dict[str, Any]:
    """Note that a task was done."""
    done.append(task)
    return {"square": task**2}


def test_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """No task is done twice, and all outcomes are given."""
    done.clear()
    kept = tmp_path / "kept.jsonl"
    assert [*Performer(kept=kept).each(perform, [1, 2])] == [{"square": 1}, {"square": 4}]
    outcomes = [*Performer(kept=kept).each(perform, [1, 2, 3])]
    assert [outcome["square"] for outcome in outcomes] == [1, 4, 9]
    assert done == [1, 2, 3]


def test_outcomes_of_other_code_are_refused(tmp_path: Path) -> None:
    """They would be told as those of the analyses as they are now."""
    outcome_file = tmp_path / "kept.jsonl"
    outcome_file.write_text(json.dumps({"code": "of yesterday"}) + "\n")
    with pytest.raises(SystemExit, match="other code"):
        Performer(kept=outcome_file)
