"""The files of an index are those of its format's number: who changes them raises it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from support import index_layout

from tracelens.distil import places
from tracelens.lod import lane_files

ADVICE = (
    "An index that is there already would be read as what it is not. Raise VERSION in the index's "
    "`index`, then write the layout down: PYTHONPATH=tests python -m support.index_layout"
)


def test_the_files_are_those_of_the_number() -> None:
    """Names, types and keys of an index's files are those recorded for the version number."""
    assert index_layout.layout() == index_layout.agreed(), ADVICE


def test_another_type_of_a_column_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description is fine enough to tell 32 bits from 64."""
    steps = lane_files.SCHEMA.get_field_index("step_change")
    wider = lane_files.SCHEMA.set(steps, pa.field("step_change", pa.int64()))
    monkeypatch.setattr(lane_files, "SCHEMA", wider)
    assert index_layout.layout() != index_layout.agreed()


def test_a_layout_with_an_old_number_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody gets past the test by writing down what there is."""
    layout_before = json.dumps({"version": places.INDEX_VERSION, "runs": {"another": {}}})
    (tmp_path / "layout.json").write_text(layout_before)
    monkeypatch.setattr(index_layout, "AGREED", tmp_path / "layout.json")
    monkeypatch.setattr(
        index_layout, "layout", lambda: {"version": places.INDEX_VERSION, "runs": {}}
    )
    assert index_layout.main() == 1
    assert "raise VERSION" in capsys.readouterr().err
    assert index_layout.AGREED.read_text() == layout_before
