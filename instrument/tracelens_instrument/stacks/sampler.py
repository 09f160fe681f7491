"""The process that has a rank's stacks sampled: ``python -m ... PID RATE FILE [SECONDS]``.

It ends when its standard input does, which is when the rank ends, however that comes, or after SECONDS.
Samples that FILE holds already stay in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tracelens.schema.arrow import SAMPLE_RATE_KEY, SAMPLE_SCHEMA, UNFINISHED_SAMPLES
from tracelens_instrument.core.attachments import ATTACHED_VARIABLE, note_attached
from tracelens_instrument.core.clock import now
from tracelens_instrument.stacks.frame_paths import make_path_shortener
from tracelens_instrument.stacks.timeline import Run, find_clock_offset_ns, read_runs, run_marker

PIECE_S: Final = 60  # py-spy keeps everything in memory, and writes at the end
MARKER_COUNT: Final = 40
LOOK_EVERY_S: Final = 0.1
PATIENCE_S: Final = 20
NS_PER_SECOND: Final = 10**9
SAMPLING: Final = b"Sampling process"  # what py-spy says as soon as it does


class _Rank:
    """The process that is sampled."""

    def __init__(self, pid: int, duration_s: float | None) -> None:
        self.pid = pid
        self._parent_pid = os.getppid()
        self._end_ns = None if duration_s is None else now() + int(duration_s * NS_PER_SECOND)
        self._is_over = False

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Return True if it ended, said that it will, or the time is over.

        Its forked children may hold our input open.
        """
        if not self._is_over:
            readable, _, _ = select.select([sys.stdin], [], [], wait_s)
            is_due = self._end_ns is not None and now() >= self._end_ns
            self._is_over = bool(readable) or is_due or os.getppid() != self._parent_pid
        return self._is_over


class _Spy:
    """One py-spy, which samples the rank and its children, so also us, for a piece of time."""

    def __init__(self, pid: int, rate_hz: int, folder: Path) -> None:
        self.timeline_path = folder / "timeline.json"
        self._log_file = (folder / "said.txt").open("w+b")
        self.started_ns = now()
        command = [_find_py_spy(), "record", "--pid", str(pid), "--rate", str(rate_hz)]
        command += ["--output", str(self.timeline_path), "--format", "chrometrace", "--idle"]
        command += ["--threads", "--nonblocking", "--subprocesses", "--full-filenames"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log_file, stderr=self._log_file
        )

    def is_sampling(self) -> bool:
        """Return True if it has found its way into the rank: on a busy machine that takes seconds."""
        return SAMPLING in self._logged()

    def has_ended(self) -> bool:
        """Return True if it has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Make py-spy write its samples."""
        if not self.has_ended():
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read_failure(self) -> str | None:
        """Return py-spy's error output if it wrote no samples."""
        if self.timeline_path.exists():
            return None
        lines = self._logged().decode(errors="replace").split("\n")
        errors = [line.removeprefix("Error:").strip() for line in lines if "Error" in line]
        return errors[0] if errors else f"it ended with exit code {self._process.returncode}"

    def _logged(self) -> bytes:
        return Path(self._log_file.name).read_bytes()


def main() -> None:
    """Sample the rank in pieces until it ends, and write them to a file, a batch each."""
    pid, rate_hz, samples_path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    rank = _Rank(pid, duration_s=float(sys.argv[4]) if len(sys.argv) > 4 else None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank gets it, too, and ends us
    work_folder = samples_path.with_suffix(UNFINISHED_SAMPLES)
    work_folder.mkdir(parents=True, exist_ok=True)
    schema = SAMPLE_SCHEMA.with_metadata({SAMPLE_RATE_KEY: str(rate_hz)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    earlier_batches = _read_samples(samples_path)
    new_path = work_folder / samples_path.name
    try:
        with (
            pa.OSFile(str(new_path), "wb") as file,
            pa.ipc.new_stream(file, schema, options=options) as stream,
        ):
            for batch in earlier_batches:
                stream.write_batch(batch.replace_schema_metadata(schema.metadata))
            new_path.replace(samples_path)
            while not rank.is_over():
                stream.write_batch(_sample_piece(rank, rate_hz, work_folder))
                _report(f"stacks at {rate_hz} Hz")
    except (OSError, ValueError, KeyError) as error:
        if not earlier_batches:
            samples_path.unlink(missing_ok=True)
        _report(f"no stacks: {error}")
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)


def _read_samples(samples_path: Path) -> list[pa.RecordBatch]:
    """Return the complete batches of a file of samples; empty if it is missing or has another schema."""
    batches: list[pa.RecordBatch] = []
    with (
        contextlib.suppress(OSError, pa.ArrowInvalid),
        pa.ipc.open_stream(samples_path.read_bytes()) as stream,
    ):
        batches.extend(batch for batch in stream if batch.schema.equals(SAMPLE_SCHEMA))
    return batches


def _sample_piece(rank: _Rank, rate_hz: int, work_folder: Path) -> pa.RecordBatch:
    """Sample until the piece is full or the rank ends; return its runs on the monotonic clock.

    Raises:
        OSError: py-spy cannot be run, or may not look into the rank.
        ValueError: it wrote what is no timeline.
    """
    spy = _Spy(rank.pid, rate_hz, work_folder)
    marker_spans: dict[str, tuple[int, int]] = {}  # begin and end of each marker, ns, by its name
    while not (spy.is_sampling() or spy.has_ended() or rank.is_over(LOOK_EVERY_S / 4)):
        pass
    _let_rank_go_on()
    while now() - spy.started_ns < PIECE_S * NS_PER_SECOND and not spy.has_ended():
        if len(marker_spans) < MARKER_COUNT:
            marker_spans |= run_marker(len(marker_spans))
        if rank.is_over(LOOK_EVERY_S / 4 if len(marker_spans) < MARKER_COUNT else LOOK_EVERY_S):
            break
    spy.end()
    failure = spy.read_failure()
    if failure:
        raise OSError(f"py-spy: {failure}")
    runs = list(read_runs(spy.timeline_path, make_path_shortener()))
    spy.timeline_path.unlink()
    monotonic_minus_spy_ns = find_clock_offset_ns(runs, marker_spans)
    if monotonic_minus_spy_ns is None:
        monotonic_minus_spy_ns = spy.started_ns
    half_sample_ns = NS_PER_SECOND // rate_hz // 2  # a sample stands for the time around it
    others_runs = [run for run in runs if run.pid != os.getpid()]
    return _make_batch(others_runs, shift_ns=monotonic_minus_spy_ns - half_sample_ns)


def _let_rank_go_on() -> None:
    with contextlib.suppress(OSError):  # it may have lost patience, or be gone
        os.write(sys.stdout.fileno(), b"\n")


def _make_batch(runs: list[Run], shift_ns: int) -> pa.RecordBatch:
    """Return a row for each run (samples in a row with one stack), its times shifted by `shift_ns`."""
    columns: dict[str, list[Any]] = {
        "pid": [run.pid for run in runs],
        "thread": [run.thread_id for run in runs],
        "thread_name": [run.thread_name for run in runs],
        "start_ns": [run.start_ns + shift_ns for run in runs],
        "end_ns": [run.end_ns + shift_ns for run in runs],
        "frames": [list(run.frames) for run in runs],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SAMPLE_SCHEMA)


def _find_py_spy() -> str:
    """Find py-spy: in the folder of this Python, or on the path.

    Raises:
        OSError: it is at neither place.
    """
    sibling_path = Path(sys.executable).with_name("py-spy")
    program = str(sibling_path) if sibling_path.exists() else shutil.which("py-spy")
    if program is None:
        raise OSError("py-spy was not found; install it with 'pip install py-spy'")
    return program


def _report(sentence: str) -> None:
    """Report once for all ranks, if `tracelens record` collects it; else only failures."""
    note_attached(sentence)
    if ATTACHED_VARIABLE not in os.environ and sentence.startswith("no "):
        with contextlib.suppress(OSError):
            sys.stderr.write(f"TraceLens: {sentence}\n")


if __name__ == "__main__":
    main()
