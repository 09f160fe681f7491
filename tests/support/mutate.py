"""Changes a module in many small ways, and prints the changes that no test notices.

cosmic-ray makes the changes, one after the other, in a copy of the checkout; after each the tests run
that concern the module: those that import it, else those of its room. Which of the survivors matter is
for people to say: some change nothing that anybody could see.

Run: make mutate MODULE=tracelens.conversion.columns [TESTS="tests/schema"] [PYTEST_ARGS=...]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.sanitize import ROOT, copy, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES: Final = (ROOT, ROOT / "instrument", ROOT / "dashboard")
TESTS: Final = ROOT / "tests"
# Tests that start trainings or browsers would take hours; the rest stops at the first that notices.
OPTIONS: Final = ("-x", "-q", "-m", "not end_to_end", "-p", "no:cacheprovider", "-p", "no:randomly")
TIMES: Final = 5  # as long as without a change: beyond, the tests hang, which is noticing, too
SHORTEST_S: Final = 20
UNSEEN: Final = "skipped"


@dataclass(frozen=True)
class Change:
    """A change of the module: in which line, by what, what the tests said, and as a diff."""

    line: int
    operator: str
    outcome: str
    diff: str


def file_of(module: str) -> Path:
    """Find a module by its dotted name or its path; relative to the checkout."""
    dotted = Path(*module.split("."))
    tried = [ROOT / module, *(root / dotted.with_suffix(".py") for root in SOURCES)]
    tried += [root / dotted / "__init__.py" for root in SOURCES]
    for path in tried:
        if path.suffix == ".py" and path.is_file():
            return path.resolve().relative_to(ROOT)
    sys.exit(f"There is no module {module!r}: give one as tracelens.conversion.columns")


def name_of(file: Path) -> str:
    """Return the dotted name of a module."""
    root = next(root for root in reversed(SOURCES) if (ROOT / file).is_relative_to(root))
    parts = (ROOT / file).relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tests_of(file: Path) -> list[str]:
    """Return the tests that import a module; where none does, the folder of its room."""
    name = name_of(file)
    direct = [test for test in sorted(TESTS.rglob("test_*.py")) if name in imported(test)]
    rooms = [part for part in file.parts[:-1] if (TESTS / part).is_dir()]
    found = direct or [TESTS / rooms[-1]] if rooms or direct else [TESTS]
    return [str(test.relative_to(ROOT)) for test in found]


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports, and what may be one."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def unseen_lines(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Return from where to where nothing is run: annotations, and what is imported for them only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield _place(node)
        for field in ("annotation", "returns"):
            part = getattr(node, field, None)
            if part is not None:
                yield _place(part)


def _place(node: Any) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def main(arguments: list[str]) -> int:
    """Change a module in every way, and say what survived; 2 where the tests fail without a change."""
    parser = argparse.ArgumentParser(prog="make mutate")
    parser.add_argument("module")
    parser.add_argument("--tests", nargs="*", help="those that concern it")
    asked, options = parser.parse_known_args(arguments)
    file = file_of(asked.module)
    tests = asked.tests or tests_of(file)
    say(f"{file}: {' '.join([*tests, *options])}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        copied(tree)
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", *OPTIONS, *tests, *options]
        if run(tree, command) != 0:
            say("These tests fail without any change.")
            return 2
        limit = max(SHORTEST_S, TIMES * (time.monotonic() - started))
        changes = changed(tree, file, command, limit)
    return told(changes)


def say(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def copied(tree: Path) -> None:
    """Copy what is changed and tested, with what was compiled; what tests only read is linked."""
    copy(tree)
    for built in ROOT.glob("instrument/tracelens_instrument/*.so"):
        shutil.copy(built, tree / built.relative_to(ROOT))
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and not (tree / entry.name).exists():
            (tree / entry.name).symlink_to(entry)


def run(tree: Path, command: list[str]) -> int:
    """Run a command in the copy, on what stands there."""
    environment = os.environ | {
        "PYTHONPATH": path_of(tree),
        "PYTHONDONTWRITEBYTECODE": "1",  # a change within the second would go unnoticed
    }
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def changed(tree: Path, file: Path, command: list[str], limit: float) -> list[Change]:
    """Have every change made, and run the tests after each."""
    settings = {
        "module-path": str(file),
        "timeout": limit,
        "excluded-modules": [],
        "test-command": shlex.join(command),
    }
    rows = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    rows += ["[cosmic-ray.distributor]", 'name = "local"']
    (tree / "mutate.toml").write_text("\n".join(["[cosmic-ray]", *rows, ""]))
    ray = [str(Path(sys.executable).with_name("cosmic-ray"))]
    if run(tree, [*ray, "init", "mutate.toml", "changes.sqlite"]) != 0:
        sys.exit("cosmic-ray cannot read the module")
    skip(tree / "changes.sqlite", (tree / file).read_text())
    run(tree, [*ray, "exec", "mutate.toml", "changes.sqlite"])
    dumped = subprocess.check_output([*ray, "dump", "changes.sqlite"], cwd=tree, text=True)
    return [_change(*json.loads(line)) for line in dumped.splitlines()]


def skip(session: Path, source: str) -> None:
    """Leave out the changes of what is never run."""
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415 - only here is it needed
    from cosmic_ray.work_item import WorkerOutcome, WorkResult  # noqa: PLC0415 - see above

    places = list(unseen_lines(source))
    with use_db(str(session), WorkDB.Mode.open) as work:
        for item in list(work.pending_work_items):
            start = tuple(item.mutations[0].start_pos)
            if any(place[:2] <= start < place[2:] for place in places):
                work.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def _change(item: dict[str, Any], result: dict[str, Any] | None) -> Change:
    (mutation,) = item["mutations"]
    done = result or {"worker_outcome": UNSEEN}
    outcome = UNSEEN if done["worker_outcome"] == UNSEEN else str(done["test_outcome"])
    name = str(mutation["operator_name"]).removeprefix("core/")
    return Change(mutation["start_pos"][0], name, outcome, done.get("diff") or "")


def told(changes: list[Change]) -> int:
    """Print the survivors in the order of their lines, and how many were noticed."""
    tried = [change for change in changes if change.outcome != UNSEEN]
    survivors = [change for change in tried if change.outcome == "survived"]
    for change in sorted(survivors, key=lambda change: change.line):
        _, _, lines = change.diff.partition("\n@@")
        rows = [row for row in lines.splitlines() if row[:1] in "+-"]
        say(f"\nline {change.line}: {change.operator}", *rows)
    outcomes = Counter(change.outcome for change in tried)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    noticed = len(tried) - len(survivors)
    say(f"\n{noticed} of {len(tried)} changes are noticed ({said or 'nothing to change'})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
