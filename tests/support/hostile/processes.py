"""Runs a verb on an input in a forked process with limits, and says what is wrong with how it ended."""

from __future__ import annotations

import gc
import json
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from random import Random
from typing import TYPE_CHECKING, Final

from support.hostile import seeds
from support.hostile.registry import FORMATS
from support.hostile.tables import sound_table

if TYPE_CHECKING:
    from support.hostile.formats import Input

CPU_S: Final = 10  # s of CPU that a verb may take on an input, above all to refuse it [policy]
CPU_S_OF_CONVERSION: Final = (
    30  # s for a conversion that succeeds: it takes 14 ms for each of a thousand ranks [policy]
)
MEMORY_BYTES: Final = 1 << 30  # bytes beyond those of the program that it may take [policy]
RECURSION_WHILE_MADE: Final = 20_000  # calls within each other while an input is made [chosen]
_ADDRESSES: Final = (
    4 << 30
)  # bytes of addresses beyond those of the program, so that the machine survives
_PATIENCE_S: Final = 300  # s after which a process that waits for something is ended
_NOT_MADE: Final = 99
_BUG: Final = re.compile(r"(\w+) at (\S+?), version")
_NOISE: Final = ("Traceback", "panicked", "Warning:", "Error:")
_SHOWN: Final = 300
_VERBS: Final = (
    *(
        ("info",),
        ("analyze", "--no-keep"),
        ("analyze", "--no-keep", "--format", "json"),
        ("index",),
        ("index",),
    ),
    *(("validate",), ("convert",), ("compare",), ("whatif",), ("scaling",)),
)
_TARGETS: Final = (
    *("native", "parquet", "perfetto", "perfetto_manifest", "csv", "otlp", "speedscope"),
)
_OF_SEVERAL_RUNS: Final = ("compare", "scaling")
_AS_JSON: Final = ("--format", "json")
# What a verb may be given besides, one of these.
_EXTRAS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "info": ((),),
    "index": ((),),
    "analyze": ((), ("--ranks", "0"), ("--steps", "1-2"), ("--time", "0-1s")),
    "validate": ((), _AS_JSON),
    "whatif": ((), _AS_JSON),
    "scaling": ((), _AS_JSON),
    "compare": ((), _AS_JSON, ("--fail-if", "step_time>+3%"), ("--fail-if", "faults")),
    "convert": (
        *((), (), ("--keep", "flagged"), ("--anonymize",)),
        *(("--steps", "1-2"), ("--ranks", "0")),
    ),
}
_EDITS: Final = (
    "all",
    "fix:1",
    "rank:1=median",
    "phase:data=0",
    "bandwidth*2",
    "latency/4",
    "buckets=1MB",
    "overlap=off",
    "message_cost/2",
)


@dataclass(frozen=True)
class Outcome:
    """How a verb ended on an input; `failure` is empty where all is well."""

    number: int
    form: str
    verb: str
    code: int
    cpu_s: float
    memory: int
    failure: str


def load_program() -> None:
    """Import the program and what is changed, once: processes that are forked share it."""
    os.environ.update(POLARS_MAX_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    import tracelens  # noqa: PLC0415 - after the number of threads is said

    for library in (
        "numpy",
        "polars",
        "pyarrow.parquet",
        "scipy.stats",
        "google.protobuf.message_factory",
    ):
        import_module(library)
    if "otf2" in FORMATS:
        import_module("otf2")
    for module in walk_packages(tracelens.__path__, "tracelens."):
        if not module.name.endswith("__main__") and ".studies" not in module.name:
            import_module(module.name)
    seeds.make()
    gc.collect()
    gc.freeze()  # children do not copy what they only look at


def name_of(number: int) -> str:
    """Return the format of an input."""
    return list(FORMATS)[number % len(FORMATS)]


def draw_arguments(form: str, source: Input, folder: Path, random: Random) -> list[str]:
    """Return the command line for an input."""
    runs = [str(source.path)]
    if form == "scenario":
        return ["simulate", *runs, "--out", str(folder / "simulated")]
    verb = ("validate",) if form == "report" else random.choice(_VERBS)
    if verb[0] in _OF_SEVERAL_RUNS:
        runs.append(str(sound_table(folder)))
        random.shuffle(runs)
    needed = {
        "convert": ("--to", random.choice(_TARGETS), "--out", str(folder / "converted")),
        "whatif": ("--what", random.choice(_EDITS)),
    }.get(verb[0], ())
    options = () if verb[0] in {*_OF_SEVERAL_RUNS, "index"} else source.options
    return [*verb, *runs, *options, *needed, *random.choice(_EXTRAS[verb[0]])]


def make(number: int, folder: Path) -> list[str]:
    """Write an input below a folder and return the command line for it."""
    random = Random(f"hostile {number}")
    form, limit = name_of(number), sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_WHILE_MADE)  # documents are nested deeper than Python copies
    made = FORMATS[form](folder, random)
    sys.setrecursionlimit(limit)
    return draw_arguments(form, made, folder, random)


def try_input(number: int, folder: Path) -> Outcome:
    """Make an input and run its verb in a process of its own."""
    shared = mmap.mmap(-1, 16)
    memory_before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    child = os.fork()
    if not child:
        _run(number, folder, shared)
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > _PATIENCE_S:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    made_s, made_kib = struct.unpack("dd", shared[:])
    code = os.waitstatus_to_exitcode(status)
    cpu_s = used.ru_utime + used.ru_stime - made_s
    memory = max(0, used.ru_maxrss - int(made_kib or memory_before_kib)) << 10
    verb = (folder / "verb").read_text() if (folder / "verb").exists() else ""
    failure = "" if code == _NOT_MADE else find_failure(code, cpu_s, memory, verb, folder)
    return Outcome(number, name_of(number), verb or "none", code, round(cpu_s, 3), memory, failure)


def _run(number: int, folder: Path, shared: mmap.mmap) -> None:
    """Be the process that makes an input and runs its verb; it ends here."""
    code = _NOT_MADE
    try:
        os.setpgid(0, 0)
        os.environ.update(TMPDIR=str(folder), XDG_CACHE_HOME=str(folder / "cache"))
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_AS, (_addresses() + _ADDRESSES,) * 2)
        arguments = make(number, folder)
        (folder / "verb").write_text(" ".join(_shorten(arguments)))
        used = resource.getrusage(resource.RUSAGE_SELF)
        shared[:] = struct.pack("dd", time.process_time(), float(used.ru_maxrss))
        resource.setrlimit(
            resource.RLIMIT_CPU,
            (int(time.process_time()) + 2 * CPU_S_OF_CONVERSION, resource.RLIM_INFINITY),
        )
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), stream)
        from tracelens.cli import main  # noqa: PLC0415 - imported before by whoever forked

        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _shorten(arguments: list[str]) -> list[str]:
    return [
        Path(one).name if one.startswith("/") else one
        for one in arguments
        if not one.startswith("--rank-of")
    ]


def _addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def find_failure(code: int, cpu_s: float, memory: int, verb: str, folder: Path) -> str:
    """Say in a few words what is wrong with the end of a verb; empty if nothing is."""
    printed, complaint = _read(folder / "stdout"), _read(folder / "stderr")
    complaint_text = complaint.decode("utf-8", "replace")
    bug = _BUG.search(complaint_text)
    foreign = [line for line in complaint_text.splitlines() if not line.startswith("tracelens")]
    noise = [line for line in foreign if any(word in line for word in _NOISE)]
    last_line = (complaint_text.strip().splitlines() or [""])[-1]
    sentence = last_line.startswith("tracelens") and last_line.endswith((".", "?"))
    is_conversion = verb.startswith("convert") and code == 0
    allowed_s = CPU_S_OF_CONVERSION if is_conversion else CPU_S
    checks = (
        (bug is not None, f"{bug[1]} at {bug[2]}" if bug else ""),
        (code < 0, f"ended by signal {-code}"),
        (code not in {0, 1, 2, 3}, f"exit code {code}"),
        (cpu_s > allowed_s, f"more than {allowed_s} s of CPU"),
        (memory > MEMORY_BYTES, f"more than {MEMORY_BYTES >> 20} MiB"),
        (bool(noise), f"a library printed: {''.join(noise[:1])}"),
        (code in {2, 3} and not sentence, f"no sentence on exit code {code}: {last_line}"),
        (code == 0 and not printed.strip(), "nothing was printed"),
        (b"\x1b" in printed + complaint, "an escape sequence was printed"),
        (code in {0, 1} and "--format json" in verb and not _is_json(printed), "no valid JSON"),
    )
    return next((words[:_SHOWN] for failed, words in checks if failed), "")


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _is_json(printed: bytes) -> bool:
    try:
        json.loads(printed.decode(), parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def in_new_folder(number: int, kept: Path | None) -> Outcome:
    """Try an input in a folder that is removed afterwards; of a failure it is kept."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        outcome = try_input(number, folder)
        if outcome.failure and kept:
            goal = kept / str(number)
            shutil.rmtree(goal, ignore_errors=True)
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, goal, symlinks=True)
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)
