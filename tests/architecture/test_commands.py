"""Every `make` command that a document or a comment names exists, and each benchmark has a target."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
BENCHMARKS: Final = "tests/benchmarks/Makefile"
INCLUDED: Final = ("tests/support/Makefile", "tests/frameworks/Makefile")
SUFFIXES: Final = frozenset({".md", ".py", ".toml", ".txt", ".ipynb"})
RULE: Final = re.compile(r"^([a-z][a-z0-9%-]*):(?!=)", re.MULTILINE)
# In backticks, after a prompt, or after `Run:`; a lower-case name with a dash counts anywhere.
COMMAND: Final = re.compile(
    r"(?:`|\$ |Run: |Run, as root: )make ([a-z][a-z0-9-]*)|\bmake ([a-z0-9]+-[a-z0-9-]+)"
)
BENCHMARK: Final = re.compile(r"\bmake bench NAME=([a-z][a-z-]*)")
SCRIPT: Final = re.compile(r"\$\(call run,([a-z_]+)")


def targets(*makefiles: str) -> set[str]:
    """Return the targets of Makefiles, patterns such as `example-%` included."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in makefiles]
    return {name for text in texts for name in RULE.findall(text)}


@cache
def texts() -> dict[str, str]:
    """Return every text that may name a command, by its path."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are ours")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in listed if Path(name).suffix in SUFFIXES]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path.exists() and path != Path(__file__)
    }


def commands() -> Iterator[tuple[str, str]]:
    """Yield each target of `make` that is named, and where."""
    for path, text in texts().items():
        for match in COMMAND.finditer(text):
            yield match[1] or match[2], path


def exists(name: str, known: set[str]) -> bool:
    """Return True if a target is known by its name or by a pattern."""
    patterns = [target.removesuffix("%") for target in known if target.endswith("%")]
    return name in known or name.startswith(tuple(patterns))


def test_every_command_exists() -> None:
    target_names = targets("Makefile", *INCLUDED)
    named = [*commands()]
    assert len(named) > 100
    assert [f"{path}: make {name}" for name, path in named if not exists(name, target_names)] == []


def test_every_benchmark_that_is_named_exists() -> None:
    target_names = targets(BENCHMARKS)
    calls = [(m[1], path) for path, text in texts().items() for m in BENCHMARK.finditer(text)]
    assert len(calls) > 50
    assert [
        f"{path}: make bench NAME={name}" for name, path in calls if name not in target_names
    ] == []


def test_every_benchmark_has_a_target() -> None:
    """`make bench` lists them all, each with what it measures."""
    text = (ROOT / BENCHMARKS).read_text(encoding="utf-8")
    scripts = {
        path.stem
        for path in (ROOT / BENCHMARKS).parent.glob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    }
    assert set(SCRIPT.findall(text)) - {"SCRIPT"} == scripts


def test_no_target_is_defined_twice() -> None:
    """The Makefile of the checkout includes those of tools and frameworks: their names are its own."""
    files = ("Makefile", *INCLUDED)
    names = [name for file in files for name in sorted(targets(file))]
    assert sorted(names) == sorted(set(names))
