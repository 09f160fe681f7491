"""`make mutate` finds a module and its tests, and leaves alone what is never run."""

from pathlib import Path

import pytest
from support import mutate

SOURCE = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pathlib import Path
def half(value: int | None, by: int = 2) -> int | None:
    return value // by
"""


@pytest.mark.parametrize(
    "module", ["tests.support.mutate", "tests/support/mutate.py", str(Path(mutate.__file__))]
)
def test_a_module_is_found_by_name_or_path(module: str) -> None:
    assert mutate.file_of(module) == Path("tests/support/mutate.py")


def test_names_begin_at_the_root_of_the_source() -> None:
    assert mutate.name_of(mutate.file_of("tracelens_instrument.hooks")) == (
        "tracelens_instrument.hooks"
    )


def test_what_is_no_module_is_one_sentence() -> None:
    with pytest.raises(SystemExit, match="is no module"):
        mutate.file_of("tracelens.nowhere")


@pytest.mark.slow  # it parses all tests
def test_tests_are_those_that_import_it() -> None:
    """Where none does, those of its room."""
    assert "tests/lod/test_index.py" in mutate.tests_of(mutate.file_of("tracelens.lod.index"))
    assert mutate.tests_of(Path("dashboard/tracelens_dashboard/nowhere.py")) == ["tests/dashboard"]


def test_annotations_are_left_alone() -> None:
    """Changes in them, and in what is imported for them, would all survive."""
    lines = SOURCE.splitlines()
    annotations = [
        lines[first - 1][begin:end]
        for first, begin, last, end in mutate.unseen_lines(SOURCE)
        if first == last
    ]
    assert sorted(annotations) == ["int", "int | None", "int | None"]
