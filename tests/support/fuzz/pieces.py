"""Has workers judge pieces of inputs, goes on where one dies, keeps what failed, counts in a journal.

The journal has a line of JSON a piece. Counts of the same program add up: its version is a digest of its
source and of the files that it changes, and a subject's next piece begins where its last one ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.fuzz.subjects import CORPUS, SUBJECTS, bases

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "JOURNAL", "KEPT", "Piece", "every_piece", "guided_piece", "next_of", "program", "run_piece",
]  # fmt: skip

ROOT: Final = Path(__file__).parents[3]
KEPT: Final = ROOT / ".fuzz"
JOURNAL: Final = KEPT / "journal.jsonl"
SEED: Final = 1
_STUCK_S: Final = 600  # of an input; so long a machine may be paused
_PROGRESS: Final = 8  # bytes
_NOT_BEGUN: Final = -1
_ENVIRONMENT: Final = {
    "PYTHONPATH": os.pathsep.join(str(ROOT / room) for room in (".", "instrument", "tests")),
    "POLARS_MAX_THREADS": "1",
    "RUST_BACKTRACE": "0",
}


@dataclass
class Piece:
    """What became of `count` inputs of a subject from number `first` on; `failures` by number."""

    subject: str
    first: int
    count: int
    guided: bool = False
    became: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    cpu_s: float = 0.0
    peak_kib: int = 0

    def row(self) -> dict[str, Any]:
        """Return its line of the journal."""
        return {
            "program": program(),
            "subject": self.subject,
            "first": self.first,
            "count": sum(self.became.values()),
            "guided": self.guided,
            "became": dict(self.became),
            "failures": len(self.failures),
            "cpu_s": round(self.cpu_s, 1),
            "peak_mib": self.peak_kib >> 10,
        }


def program() -> str:
    """Return the version of the program, of what decides what is damaged how, and what is a failure."""
    files = {*Path(__file__).parent.glob("*.py"), *CORPUS.rglob("base-*")}
    files.remove(Path(__file__).with_name("published.py"))
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def every_piece(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines of the journal."""
    with suppress(FileNotFoundError):
        yield from map(json.loads, journal.read_text().splitlines())


def next_of(subject: str, journal: Path, *, guided: bool = False) -> int:
    """Return the first input of a subject that was not judged yet."""
    mine = {"program": program(), "subject": subject, "guided": guided}
    rows = (row for row in every_piece(journal) if mine.items() <= row.items())
    return max((row["first"] + row["count"] for row in rows), default=0)


def run_piece(subject: str, count: int, first: int, seed: int = SEED) -> Piece:
    """Judge so many inputs; whoever dies of one is followed by another that begins after it."""
    piece = Piece(subject, first, count)
    end = first + count
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder, "progress")
        while first < end:
            progress.write_bytes(_NOT_BEGUN.to_bytes(_PROGRESS, "little", signed=True))
            code, errors = _work(piece, [subject, seed, first, end - first, progress], progress)
            if code == 0:
                break
            died = int.from_bytes(progress.read_bytes(), "little", signed=True)
            if died == _NOT_BEGUN:
                raise RuntimeError(f"the worker of {subject} did not begin: {errors}")
            before = sum(first <= number < died for number in piece.failures)
            piece.became.update({"before a crash": died - first - before, "failed": before + 1})
            piece.failures[died] = _cause(code, errors)
            first = died + 1
    for number in piece.failures:
        kept(subject, number, seed)
    return piece


def _cause(code: int, errors: str) -> str:
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the process died of {name}\n{errors[-1500:]}"


def _work(piece: Piece, words: list[Any], progress: Path) -> tuple[int, str]:
    environment = os.environ | _ENVIRONMENT
    command = [sys.executable, "-X", "faulthandler", "-m", "support.fuzz.worker", *map(str, words)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as worker,
    ):
        watch = threading.Thread(target=_watch, args=(worker, progress), daemon=True)
        watch.start()
        assert worker.stdout is not None
        for line in worker.stdout:
            row = json.loads(line)
            if "failure" in row:
                piece.failures[row["number"]] = row["failure"]
            else:
                piece.became.update(row["became"])
                piece.cpu_s += row["cpu_s"]
                piece.peak_kib = max(piece.peak_kib, row["peak_kib"])
        code = worker.wait()
        errors.seek(0)
        return code, errors.read().decode("utf-8", "replace")


def _watch(worker: subprocess.Popen[bytes], progress: Path) -> None:
    """Kill a worker that has been at one input for very long, waiting for something."""
    seen, since = b"", time.monotonic()
    while worker.poll() is None:
        time.sleep(1)
        with suppress(OSError):
            now = progress.read_bytes()
            if now != seen:
                seen, since = now, time.monotonic()
        if time.monotonic() - since > _STUCK_S:
            worker.kill()


def guided_piece(subject: str, count: int, seed: int) -> Piece:
    """Have atheris choose so many inputs; how many became what is not known then.

    Raises:
        RuntimeError: atheris is not installed here.
    """
    piece = Piece(subject, seed, count, guided=True)
    words = ["-m", "support.fuzz.guided", subject, f"--inputs={count}", f"--seed={seed}"]
    command, environment = [sys.executable, *words], os.environ | _ENVIRONMENT
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    said = done.stderr.decode("utf-8", "replace") + done.stdout.decode("utf-8", "replace")
    if "atheris is not installed" in said:
        raise RuntimeError("atheris is not installed here: no input is chosen by coverage")
    if done.returncode or f"Done {count} runs" not in said:
        piece.failures[seed] = said[-3000:]
    piece.became["guided"] = count
    return piece


def kept(subject: str, number: int, seed: int = SEED) -> Path:
    """Write a failing input, to be read and replayed."""
    from support.fuzz.judge import changed  # noqa: PLC0415 - needs all readers

    place = KEPT / "failing" / f"{subject}-{seed}-{number}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(changed(SUBJECTS[subject], seed, number, bases(SUBJECTS[subject])))
    return place
