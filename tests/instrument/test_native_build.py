"""An install succeeds with and without a compiler."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

pytest.importorskip("hatchling")

HOOK = Path(__file__).parents[2] / "instrument" / "build_native.py"


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path, hook: ModuleType) -> Path:
    """A source tree with nothing in it but the C file."""
    source = tmp_path / "tree" / hook.SOURCE
    source.parent.mkdir(parents=True)
    shutil.copy(HOOK.parents[1] / hook.SOURCE, source)
    return tmp_path / "tree"


def build(hook: ModuleType, root: Path, version: str) -> dict[str, Any]:
    made = hook.NativeBuildHook(str(root), {}, None, None, str(root), "wheel")
    build_data: dict[str, Any] = {"force_include": {}}
    made.initialize(version, build_data)
    held = [Path(library).is_file() for library in build_data["force_include"]]
    made.finalize(version, build_data, "")
    assert all(held)
    return build_data


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/such/compiler"])
@pytest.mark.parametrize("version", ["editable", "standard"])
def test_without_a_compiler(
    hook: ModuleType, root: Path, compiler: str, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says why the recorder in Python will serve, and leaves no library of an earlier build."""
    stale = (root / hook.SOURCE).with_name(hook.LIBRARY)
    stale.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        assert build(hook, root, version) == {"force_include": {}}
    assert "the recorder in Python will serve, as" in capfd.readouterr().err
    assert stale.exists() == (version == "standard")


def test_with_a_compiler(hook: ModuleType, root: Path) -> None:
    """The library lies beside its source when that is edited, and only in the wheel otherwise."""
    beside = (root / hook.SOURCE).with_name(hook.LIBRARY)
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler here")
    data = build(hook, root, "standard")
    assert list(data["force_include"].values()) == [f"tracelens_instrument/{hook.LIBRARY}"]
    assert data["tag"].startswith("cp311-abi3-linux_")
    assert not data["pure_python"]
    assert not beside.exists()
    assert build(hook, root, "editable") == {"force_include": {}}
    assert beside.is_file()
