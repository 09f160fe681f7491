"""What is compiled for a PyTorch serves where it can; else one sentence says why, and Python serves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.hooks.torch import compiled


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiled.load_library.cache_clear()
    yield
    compiled.load_library.cache_clear()


def test_none_was_built() -> None:
    assert compiled.load_library() is None


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("no-such-compiler", "there is no compiler (no-such-compiler)"), ("false", "compiler failed")],
)
def test_it_cannot_be_built(
    compiler: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1 and why; nothing half done is left."""
    monkeypatch.setenv("CXX", compiler)
    assert compiled.main() == 1
    assert why in capsys.readouterr().err
    assert not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]


@pytest.mark.skipif(not NATIVE, reason="nothing compiled is looked for")
def test_a_damaged_library_is_left_alone() -> None:
    path = compiled._library_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x7fELF, but no more")
    with pytest.warns(RuntimeWarning, match="compiled for this PyTorch cannot be used"):
        assert compiled.load_library() is None
