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
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.sanitize import ROOT, copy, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES: Final = (ROOT, ROOT / "instrument", ROOT / "dashboard")
PACKAGES: Final = ("tracelens", "instrument", "dashboard")
TESTS: Final = ROOT / "tests"
WAITING_S: Final = 300
# The tests of `make test` judge, without those that start processes. They stop at the first failure.
OPTIONS: Final = (
    *(
        "-x",
        "-q",
        "-m",
        "not slow and not end_to_end",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ),
    f"--timeout={WAITING_S}",
    "--hypothesis-profile=brief",
)
# Tests that take 5 times the CPU of those without a change hang, which is noticing, too; so do those
# that wait for WAITING_S. By the clock on the wall, other work of the machine would count as noticed.
TIMES: Final = 5
SHORTEST_S: Final = 20
UNSEEN: Final = "skipped"


@dataclass(frozen=True)
class Change:
    """A change of the module: in which line, by what, what the tests said, and as a diff."""

    line: int
    operator: str
    outcome: str
    diff: str


@dataclass(frozen=True)
class Sample:
    """Of how many changes one is made, drawn at random by a seed."""

    one_in: int
    seed: int

    def draw(self, name: str, jobs: list[str]) -> set[str]:
        """Draw from the changes of a module: at least one."""
        chance = random.Random(f"{self.seed}/{name}")
        return set(chance.sample(jobs, -(-len(jobs) // self.one_in)))


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
    module_names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            module_names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module_names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return module_names


def unseen_lines(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Return from where to where nothing is run: annotations, and what is imported for them only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield _code_range(node)
        for field in ("annotation", "returns"):
            part = getattr(node, field, None)
            if part is not None:
                yield _code_range(part)


def _code_range(node: Any) -> tuple[int, int, int, int]:
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
        changes = changes_of(copied(Path(folder, "tree")), file, [*tests, *options])
    return 2 if changes is None else print_survivors(changes)


def changes_of(
    tree: Path, file: Path, tests: list[str], sample: Sample | None = None
) -> list[Change] | None:
    """Change a module in a copy of the checkout; None where the tests fail without a change."""
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    if run(tree, command) != 0:
        say("These tests fail without any change.")
        return None
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    most = max(SHORTEST_S, round(TIMES * spent))
    return make_changes(tree, file, ["prlimit", f"--cpu={most}", *command], sample)


def say(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def copied(tree: Path) -> Path:
    """Copy what is changed and tested, with what was compiled; what tests only read is linked."""
    tree.mkdir()
    copy(tree)
    for built in ROOT.glob("instrument/tracelens_instrument/*.so"):
        shutil.copy(built, tree / built.relative_to(ROOT))
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and not (tree / entry.name).exists():
            (tree / entry.name).symlink_to(entry)
    # Bytecode that is used as long as the source is the same, whenever it was written.
    compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([*compiled, *(tree / root for root in PACKAGES)], check=True)
    return tree


def run(tree: Path, command: list[str]) -> int:
    """Run a command in the copy, on what stands there."""
    environment = os.environ | {
        "PYTHONPATH": path_of(tree),
        "PYTHONDONTWRITEBYTECODE": "1",  # a change within the second would go unnoticed
    }
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def make_changes(tree: Path, file: Path, command: list[str], sample: Sample | None) -> list[Change]:
    """Have every change made, or a sample of them, and run the tests after each."""
    settings = {
        "module-path": str(file),
        "timeout": 4.0 * WAITING_S,
        "excluded-modules": [],
        "test-command": shlex.join(command),
    }
    rows = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    rows += ["[cosmic-ray.distributor]", 'name = "local"']
    (tree / "mutate.toml").write_text("\n".join(["[cosmic-ray]", *rows, ""]))
    ray = [str(Path(sys.executable).with_name("cosmic-ray"))]
    (tree / "changes.sqlite").unlink(missing_ok=True)
    if run(tree, [*ray, "init", "mutate.toml", "changes.sqlite"]) != 0:
        sys.exit("cosmic-ray cannot read the module")
    skip(tree / "changes.sqlite", file, (tree / file).read_text(), sample)
    run(tree, [*ray, "exec", "mutate.toml", "changes.sqlite"])
    dumped = subprocess.check_output([*ray, "dump", "changes.sqlite"], cwd=tree, text=True)
    return [_change(*json.loads(line)) for line in dumped.splitlines()]


def skip(session: Path, file: Path, source: str, sample: Sample | None) -> None:
    """Leave out the changes of what is never run, and those that are not drawn."""
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415 - only here is it needed
    from cosmic_ray.work_item import WorkerOutcome, WorkResult  # noqa: PLC0415 - see above

    ignored_ranges = list(unseen_lines(source))
    with use_db(str(session), WorkDB.Mode.open) as work:
        mutations = {item.job_id: item.mutations[0] for item in work.pending_work_items}
        run = [
            job
            for job in sorted(mutations, key=lambda job: _order(mutations[job]))
            if not any(
                place[:2] <= tuple(mutations[job].start_pos) < place[2:] for place in ignored_ranges
            )
        ]
        kept = set(run) if sample is None else sample.draw(str(file), run)
        for job in mutations.keys() - kept:
            work.set_result(job, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def _order(mutation: Any) -> tuple[Any, ...]:
    """Return what orders the changes of a module: their names are others each time."""
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def _change(item: dict[str, Any], result: dict[str, Any] | None) -> Change:
    (mutation,) = item["mutations"]
    done = result or {"worker_outcome": UNSEEN}
    outcome = UNSEEN if done["worker_outcome"] == UNSEEN else str(done["test_outcome"])
    name = str(mutation["operator_name"]).removeprefix("core/")
    return Change(mutation["start_pos"][0], name, outcome, done.get("diff") or "")


def print_survivors(changes: list[Change]) -> int:
    """Print the survivors in the order of their lines, and how many were noticed."""
    tested = [change for change in changes if change.outcome != UNSEEN]
    survivors = [change for change in tested if change.outcome == "survived"]
    for change in sorted(survivors, key=lambda change: change.line):
        _, _, lines = change.diff.partition("\n@@")
        rows = [row for row in lines.splitlines() if row[:1] in "+-"]
        say(f"\nline {change.line}: {change.operator}", *rows)
    outcomes = Counter(change.outcome for change in tested)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    noticed = len(tested) - len(survivors)
    say(f"\n{noticed} of {len(tested)} changes are noticed ({said or 'nothing to change'})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
