"""Each dependency stands on its page with a reason; the lock of the tests' ones is of this project."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "tracelens-training"
PINNED: Final = re.compile(
    r"^([a-z0-9_.-]+)(?:\[[a-z0-9,-]+\])?==([^ ;\\]+)([^\n]*\\\n    --hash=)?", re.MULTILINE
)


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def requirements_of(extra: str) -> Iterator[Requirement]:
    """Yield what an extra asks for, with what it takes from other extras."""
    for requirement in map(Requirement, project()["optional-dependencies"][extra]):
        if requirement.name != NAME:
            yield requirement
        for extra_name in requirement.extras if requirement.name == NAME else ():
            yield from requirements_of(extra_name)


def test_each_library_has_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    explained = {
        *re.findall(r"^\| (\(base\)|\w+) \| `([\w-]+)` \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    }
    declared = {("(base)", Requirement(text).name) for text in project()["dependencies"]}
    for extra, texts in project()["optional-dependencies"].items():
        if extra not in {"test", "all"}:
            declared |= {
                (extra, found.name) for found in map(Requirement, texts) if found.name != NAME
            }
    assert explained == declared


def test_the_lock_is_of_this_project() -> None:
    """`make lock` was run after the last change of the test requirements."""
    lock = (ROOT / "tests" / "requirements.txt").read_text()
    pinned: dict[str, list[str]] = {}
    for name, version, hashed in PINNED.findall(lock):
        assert hashed, f"{name} has no hash"
        pinned.setdefault(name, []).append(version)
    for requirement in requirements_of("test"):
        name = requirement.name.lower().replace("_", "-")
        if name != "torch":
            assert [v for v in pinned.get(name, []) if v in requirement.specifier], requirement


def test_the_lock_names_no_place() -> None:
    """Which index the libraries come from is a matter of who installs them."""
    assert "://" not in (ROOT / "tests" / "requirements.txt").read_text()
