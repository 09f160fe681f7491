"""What stands in for pathlib and json where the recorder starts does the same as they do."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.schema.light_json import dumps
from tracelens.schema.light_path import LightPath

ROWS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ROWS)
def test_json_is_that_of_the_standard_library(value: Any) -> None:
    """A row comes out as compact JSON, letter by letter."""
    assert dumps(value) == json.dumps(value, separators=(",", ":"))


def test_files_and_folders_are_made_and_removed(tmp_path: pathlib.Path) -> None:
    """Folders are made with those above them, files read and removed, and missing ones told."""
    folder = LightPath(tmp_path) / "a" / "b"
    folder.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.raises(FileExistsError):
        folder.mkdir()
    file = folder / "file"
    pathlib.Path(file).write_text("so", encoding="utf-8")
    assert (file.exists(), file.read_bytes(), file.read_text()) == (True, b"so", "so")
    assert file.stat().st_ino == pathlib.Path(file).stat().st_ino
    file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        file.unlink()
    folder.rmdir()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["a/b.c", "/a/b.c", "b.c", "", "/"])
def test_names_are_those_of_pathlib(name: str) -> None:
    """Joined, made absolute and taken apart, a path names the same file."""
    light, real = LightPath(name), pathlib.Path(name)
    assert light == real
    assert light / "d" == real / "d"
    assert light / "/d" == pathlib.Path("/d")
    assert light.absolute() == real.absolute()
    assert light.parent == real.parent
    assert (light.name, light.stem) == (real.name, real.stem)
    assert light.with_suffix(".x") == real.with_suffix(".x") if real.name else True
    assert hash(light) == hash(LightPath(f"./{name}" if not real.is_absolute() else name))


@pytest.mark.parametrize("value", [b"a", 1, None])
def test_what_is_no_text_is_no_path(value: Any) -> None:
    """Anything but a text, or a path, is refused as pathlib does."""
    with pytest.raises(TypeError):
        LightPath(value)
