"""mpi4py's own tests, without and under `tracelens record`, with each MPI that is installed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suites.comparison import LIMIT_S, Outcome, Suite, compare, conclude, row, run, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MPIS", "Mpi", "compare_files", "find_tests"]

_EACH_RANK: Final = Path(__file__).with_name("each_rank.py")
_OPEN_MPI: Final = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")


@dataclass(frozen=True)
class Mpi:
    """An implementation of MPI: how it starts ranks, and how mpi4py finds it."""

    name: str
    launcher: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()  # files of tests which do not end there, recorded or not

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
        frozenset({"test_spawn", "test_dynproc", "test_util_pool"}),  # they start processes
    ),
)


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
        timeout=LIMIT_S,
    )
    (archive,) = folder.glob("mpi4py-*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder / f"mpi4py-{version}" / "test"


def compare_files(mpi: Mpi, ranks: int, tests: Path, files: Sequence[str]) -> Suite:
    """Run some files of tests without and under `tracelens record`."""

    def run_files(files: Sequence[str], recorded: bool) -> Outcome:  # noqa: FBT001 - as `Run` says
        names = "|".join(f"{file}[.]py" for file in files)

        def command(outcomes: Path) -> list[str]:
            rank = [sys.executable, "-m", "mpi4py", _EACH_RANK, tests, outcomes, names]
            return [*mpi.launcher, "-n", str(ranks), *map(str, rank)]

        return run(command, files, ranks, mpi.variables, recorded=recorded)

    return compare(mpi.name, ranks, files, run_files)


def main() -> int:
    """Run the suites that can be run here, and print what they came to."""
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
                say(f"{mpi.name} is not installed here: {mpi.launcher[0]} was not found")
                continue
            for ranks in arguments.ranks:
                chosen = [file for file in files if file not in mpi.left_out]
                suites.append(compare_files(mpi, ranks, tests, chosen))
                say(" | ".join(row(suites[-1])))
    title = f"mpi4py {metadata.version('mpi4py')}"
    script = "tests/suites/mpi4py_suite.py"
    return conclude(title, "files", suites, script, published=arguments.publish)


if __name__ == "__main__":
    sys.exit(main())
