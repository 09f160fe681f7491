"""mpi4py's own tests, without and under `tracelens record`: no new failure, and events are recorded.

All files of tests run in the same ranks, first without and then recorded; each in ranks of its own, if
these do not end. Files in which something fails only recorded are run once more, both ways: new is what
fails each time that it is recorded, and never without. `make suites` runs this.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["MPIS", "Mpi", "Outcome", "Suite", "compare", "find_tests"]

_PAGE: Final = "harmless.md"
_LIMIT_S: Final = 1800
_EACH_RANK: Final = Path(__file__).with_name("each_rank.py")
_OPEN_MPI: Final = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
_EVENTS: Final = re.compile(r"with ([\d,]+) events")
_OURS: Final = ("TRACELENS_", "PMI", "OMPI_", "PRTE_", "PMIX_")


@dataclass(frozen=True)
class Mpi:
    """An implementation of MPI: how it starts ranks, and how mpi4py finds it."""

    name: str
    launcher: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether it is installed here."""
        return shutil.which(self.launcher[0]) is not None


MPIS: Final = (
    Mpi("MPICH", (str(Path(sys.executable).with_name("mpiexec")),)),
    Mpi(
        "Open MPI",
        ("mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe"),
        {"MPI4PY_LIBMPI": str(_OPEN_MPI), "OMPI_MCA_rmaps_base_oversubscribe": "1"},
    ),
)


@dataclass
class Outcome:
    """What tests came to: which ran, which failed, and how many events were recorded."""

    ran: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    events: int = 0
    ended: bool = True


@dataclass
class Suite:
    """What the tests of some files came to, both ways."""

    mpi: str
    ranks: int
    files: int
    without: Outcome = field(default_factory=Outcome)
    recorded: Outcome = field(default_factory=Outcome)
    new: set[str] = field(default_factory=set)

    @property
    def passed(self) -> bool:
        """Whether nothing fails because it is recorded, and something was recorded."""
        return not self.new and self.recorded.events > 0


def find_tests(folder: Path) -> Path:
    """Download the source of the installed mpi4py; return its folder of tests.

    Raises:
        CalledProcessError: it cannot be had.
    """
    version = metadata.version("mpi4py")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--no-binary", "mpi4py", "--dest", str(folder), f"mpi4py=={version}"),
        ],
        check=True,
        capture_output=True,
        timeout=_LIMIT_S,
    )
    (archive,) = folder.glob("mpi4py-*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / f"mpi4py-{version}" / "test"


def compare(mpi: Mpi, ranks: int, tests: Path, files: Sequence[str]) -> Suite:
    """Run some files of tests without and under `tracelens record`."""
    suite = Suite(mpi.name, ranks, len(files))
    groups = [tuple(files)]
    while groups:
        group = groups.pop()
        found = _both(mpi, ranks, tests, group)
        if len(group) > 1 and not all(outcome.ended for outcome in found):
            groups += [(file,) for file in group]
            continue
        suite.new |= _new(mpi, ranks, tests, found)
        for total, part in zip((suite.without, suite.recorded), found, strict=True):
            total.ran |= part.ran
            total.failed |= part.failed
            total.events += part.events
    return suite


def _new(mpi: Mpi, ranks: int, tests: Path, found: tuple[Outcome, Outcome]) -> set[str]:
    new = found[1].failed - found[0].failed
    if new:
        files = sorted({test.partition(".")[0] for test in new})
        without, recorded = _both(mpi, ranks, tests, files)
        new = (new & recorded.failed) - without.failed
    return new


def _both(mpi: Mpi, ranks: int, tests: Path, files: Sequence[str]) -> tuple[Outcome, Outcome]:
    without, recorded = (_run(mpi, ranks, tests, files, recorded=it) for it in (False, True))
    return without, recorded


def _run(mpi: Mpi, ranks: int, tests: Path, files: Sequence[str], *, recorded: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as place:
        trace, outcomes = Path(place) / "trace", Path(place) / "outcomes"
        outcomes.mkdir()
        chosen = "|".join(f"{file}[.]py" for file in files)
        rank = [sys.executable, "-m", "mpi4py", str(_EACH_RANK), str(tests), str(outcomes), chosen]
        command = [*mpi.launcher, "-n", str(ranks), *rank]
        if recorded:
            record = ["record", "--no-verdict", "--out", str(trace), "--"]
            command = [sys.executable, "-m", "tracelens", *record, *command]
        said = _said(command, mpi.variables)
        lines = list(_lines(outcomes))
        found = Outcome(
            ran={test for _, test in lines},
            failed={test for outcome, test in lines if outcome == "failed"},
            ended=said is not None and lines.count(("ended", "")) == ranks,
        )
        found.ran.discard("")
        if not found.ended:
            found.failed |= {f"{file}.(does not end)" for file in files}
        events = _EVENTS.search(said or "")
        found.events = int(events[1].replace(",", "")) if events else 0
        return found


def _lines(outcomes: Path) -> Iterator[tuple[str, str]]:
    for path in outcomes.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            outcome, _, test = line.partition(" ")
            yield outcome, test


def _said(command: Sequence[str], variables: Mapping[str, str]) -> str | None:
    """Return what a command writes to its standard error; None if it does not end by itself."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    with subprocess.Popen(
        command,
        env=ours | dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=_LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            return None


def _row(suite: Suite) -> tuple[str, ...]:
    without, recorded = suite.without, suite.recorded
    return (
        suite.mpi,
        str(suite.ranks),
        str(suite.files),
        str(len(without.ran)),
        str(len(recorded.ran)),
        str(len(without.failed)),
        str(len(recorded.failed)),
        ", ".join(sorted(suite.new)) or "none",
        f"{recorded.events:,}",
    )


def _table(suites: Sequence[Suite]) -> str:
    head = (
        "MPI", "ranks", "files", "tests without", "tests recorded", "failures without",
        "failures recorded", "new failures", "events",
    )  # fmt: skip
    return table(f"mpi4py {metadata.version('mpi4py')}", head, map(_row, suites))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the suites that can be run here, and say what they came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mpi", nargs="+", default=[mpi.name for mpi in MPIS])
    parser.add_argument("--files", nargs="+", help="names of files of tests (default: all)")
    parser.add_argument(
        "--tests", type=Path, help="mpi4py's folder of tests (default: download it)"
    )
    parser.add_argument("--publish", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tests = arguments.tests or find_tests(Path(folder))
        files = arguments.files or sorted(path.stem for path in tests.glob("test_*.py"))
        suites = []
        for mpi in (mpi for mpi in MPIS if mpi.name in arguments.mpi):
            if not mpi.is_there:
                _say(f"{mpi.name} is not installed here: {mpi.launcher[0]} was not found")
                continue
            for ranks in arguments.ranks:
                suites.append(compare(mpi, ranks, tests, files))
                _say(" | ".join(_row(suites[-1])))
    text = _table(suites)
    _say(text)
    if arguments.publish:
        publish(_PAGE, "tests/suites/mpi4py_suite.py", text)
    return 0 if suites and all(suite.passed for suite in suites) else 1


if __name__ == "__main__":
    sys.exit(main())
