"""Runs the tests of what is in C with libraries that check every access and every operation.

The sources are copied and compiled there with the address and undefined-behaviour sanitizers, so that
the installation stays as it is. Python's objects come from plain malloc, so that each is watched. What
CPython and other libraries never free is not reported. A report fails the run, whichever process it
comes from and whether or not a test looks at how that process ends. This file is a plugin of pytest's
as well, which notes the test in which a report was made.

Run: make sanitize [PYTEST_ARGS=...]
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARTS: Final = ("tracelens", "instrument", "dashboard", "tests", "pyproject.toml")
COMPILED: Final = ("*.so", "__pycache__")
TESTS: Final = ("tests/instrument", "tests/accounting")
# Where both sanitizers are shared libraries, one of them does not heed to which file it is to report.
FLAGS: Final = (
    "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all "
    "-static-libubsan -Wl,-Bsymbolic,--exclude-libs,ALL"
)
SANITIZERS: Final = ("ASAN_OPTIONS", "UBSAN_OPTIONS")
OPTIONS: Final = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:alloc_dealloc_mismatch=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "PYTHONMALLOC": "malloc",
    "TRACELENS_NATIVE": "1",
}
# The sanitizers map terabytes of addresses: with a limit on them a program ends before it begins.
LEFT_OUT: Final = ("-m", "not limits_memory")
REPORTS: Final = "SANITIZER_REPORTS"  # variable: the folder of the reports
REPORT: Final = "of"  # begins their names
IN_USE: Final = "from tracelens_instrument.core.backend import backend; print(*backend(), sep=': ')"


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        tree.chmod(0o755)  # a test goes on as another user
        copy(tree)
        build(tree)
        reports = tree / "reports"
        reports.mkdir()
        reports.chmod(0o777)
        environment = os.environ | options(reports)
        environment |= {"LD_PRELOAD": preload(), "PYTHONPATH": path_of(tree), REPORTS: str(reports)}
        used = subprocess.check_output([sys.executable, "-c", IN_USE], env=environment, text=True)
        if not used.startswith("native"):
            sys.exit(f"What is in C is not in use: {used}")
        plugins = ("-p", "no:cacheprovider", "-p", "support.sanitize")
        tests = [sys.executable, "-m", "pytest", *TESTS, *plugins]
        ran = subprocess.run(
            [*tests, *LEFT_OUT, *arguments], cwd=tree, env=environment, check=False
        )
        reports_found = sorted(reports.glob(f"{REPORT}.*"))
        texts = [
            f"{test_of(report)}\n{report.read_text(errors='replace')}" for report in reports_found
        ]
        sys.stdout.write("\n".join([*texts, f"{len(reports_found)} reports of sanitizers\n"]))
        return ran.returncode or bool(reports_found)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note beside each new report after which test it was there."""
    for report in Path(os.environ[REPORTS]).glob(f"{REPORT}.*"):
        note = note_path(report)
        if not note.exists():
            note.write_text(nodeid)


def test_of(report: Path) -> str:
    note = note_path(report)
    return f"In {note.read_text()}:" if note.exists() else "After all tests:"


def note_path(report: Path) -> Path:
    return report.with_name(f"test-{report.name}")


def options(reports: Path) -> dict[str, str]:
    """Return what the sanitizers are told: each process that has something to report makes a file."""
    to_file = {name: f"{OPTIONS[name]}:log_path={reports / REPORT}" for name in SANITIZERS}
    return OPTIONS | to_file


def copy(tree: Path) -> None:
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns(*COMPILED))
        else:
            shutil.copy(source, tree)


def build(tree: Path) -> None:
    """Compile as the build hook does, with more flags."""
    spec = importlib.util.spec_from_file_location("hook", tree / "instrument" / "build_native.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    os.environ["CFLAGS"] = FLAGS
    for source in hook.SOURCES:
        if not hook.compiled(tree / source, hook.library_of(tree / source)):
            sys.exit("The compiler or its sanitizers are missing.")
    del os.environ["CFLAGS"]


def preload() -> str:
    """Name the sanitizer's library: a program that was built without it must load it first."""
    command = ["cc", "-print-file-name=libasan.so"]
    return subprocess.check_output(command, text=True).strip()


def path_of(tree: Path) -> str:
    return os.pathsep.join(str(tree / part) for part in ("", "instrument", "dashboard"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
