"""An install succeeds with and without a compiler."""

import importlib.util
import re
import shutil
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("hatchling")

HOOK = Path(__file__).parents[3] / "instrument" / "build_native.py"


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
    """A source tree with nothing in it but the C files."""
    tree = tmp_path / "tree"
    for source in hook.SOURCES:
        (tree / source).parent.mkdir(parents=True)
        shutil.copy(HOOK.parents[1] / source, tree / source)
    shutil.copytree(HOOK.parents[1] / hook.RECORDER_PARTS, tree / hook.RECORDER_PARTS)
    return tree


def build(hook: ModuleType, root: Path, version: str) -> dict[str, Any]:
    hook_instance = hook.NativeBuildHook(str(root), {}, None, None, str(root), "wheel")
    build_data: dict[str, Any] = {"force_include": {}}
    hook_instance.initialize(version, build_data)
    held = [Path(library).is_file() for library in build_data["force_include"]]
    hook_instance.finalize(version, build_data, "")
    assert all(held)
    return build_data


@pytest.mark.parametrize("compiler", ["/bin/false", "/no/such/compiler"])
@pytest.mark.parametrize("version", ["editable", "standard"])
def test_a_build_without_a_compiler_leaves_no_library(
    hook: ModuleType, root: Path, compiler: str, version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says why Python will do the same, and leaves no library of an earlier build."""
    stale = [hook.library_of(root / source) for source in hook.SOURCES]
    for library in stale:
        library.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        assert build(hook, root, version) == {"force_include": {}}
    said = capfd.readouterr().err
    for source in hook.SOURCES:
        assert f"what {source.name} does will be done in Python, as" in said
    assert {library.exists() for library in stale} == {version == "standard"}


@pytest.mark.slow
def test_a_build_with_a_compiler_places_its_library(hook: ModuleType, root: Path) -> None:
    """An editable install has the library next to its source, a wheel only inside."""
    libraries = [hook.library_of(root / source) for source in hook.SOURCES]
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler here")
    data = build(hook, root, "standard")
    assert list(data["force_include"].values()) == [
        "tracelens_instrument/_native.abi3.so",
        "tracelens/accounting/_sweep.abi3.so",
    ]
    assert re.fullmatch("cp311-abi3-(many)?linux_.*", data["tag"])
    assert not data["pure_python"]
    assert not any(library.exists() for library in libraries)
    assert build(hook, root, "editable") == {"force_include": {}}
    assert all(library.is_file() for library in libraries)


def test_free_threaded_python(
    hook: ModuleType,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It compiles nothing, and the wheel fits any Python."""
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: 1)
    assert build(hook, root, "standard") == {"force_include": {}}
    assert "GIL" in capsys.readouterr().err


@pytest.mark.slow
def test_the_native_part_compiles_without_warnings(
    hook: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one compiler warns of the next one refuses."""
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler here")
    monkeypatch.setenv("CFLAGS", "-Wall -Wextra -Werror")
    for source in hook.SOURCES:
        assert hook.compiled(root / source, hook.library_of(root / source))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\0clock_gettime\0GLIBC_2.17\0GLIBC_2.2.5\0", "manylinux_2_17_x86_64"),
        (b"\0clock_gettime\0GLIBC_2.34\0GLIBC_2.2.5\0", "manylinux_2_34_x86_64"),
        (b"\0GLIBC_2.36\0GLIBC_ABI_DT_RELR\0", "linux_x86_64"),
        (b"\0clock_gettime\0libc.musl-x86_64.so.1\0", "linux_x86_64"),
    ],
)
def test_platform_is_the_oldest_that_runs_it(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: str
) -> None:
    """The wheel says which C library it needs, so that an index takes it and pip refuses it in time."""
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    assert hook._platform(content) == expected
