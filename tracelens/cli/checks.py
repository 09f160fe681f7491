"""What `tracelens doctor` checks. Each returns what it found and what to do.

The trial records for real: a process that records and is killed in the middle, and what is left of
it.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tracelens.errors import MissingExtra, TraceLensError

if TYPE_CHECKING:
    from collections.abc import Iterator

State = Literal["ok", "note", "problem"]

_GIBIBYTE: Final = 1 << 30
_MAX_NS_PER_READING: Final = 300  # a clock that takes longer to read is slow
_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_PTRACE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_EXTRAS: Final = {
    "analyze": ("polars", "rich", "jsonschema", "scipy"),
    "dashboard": ("dash", "plotly", "dash_mantine_components", "dash_ag_grid", "waitress"),
    "mpi": ("mpi4py",),
    "remote": ("fsspec", "s3fs", "aiohttp"),
}
SPANS: Final = 1000
TIME_LIMIT_S: Final = 60
TRIAL_PROGRAM: Final = f"""
import os, signal, sys
import tracelens as tl
tl.start(sys.argv[1], rank=0, world=1)
SPAN = tl.span("trial")
for _ in range({SPANS}):
    with SPAN:
        pass
with SPAN:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Check:
    """A check: its name, its state, the observation, and advice ('' = none)."""

    name: str
    state: State
    found: str
    advice: str = ""


def check_all(out: Path | None) -> list[Check]:
    """Check everything, for recording to `out`, or to the folder that the environment names."""
    from tracelens_instrument.core.environment import default_directory, wanted_directory

    directory = (out or wanted_directory() or default_directory()).absolute()
    return [
        _check_system(),
        _check_recorder(),
        _check_clock(),
        _check_folder(directory),
        check_trial(find_existing(directory)),
        _check_identity(),
        _check_environment(),
        *_check_frameworks(),
        *_check_extras(),
        _check_sampling(),
    ]


def find_existing(directory: Path) -> Path:
    """Return the folder itself or the nearest one above that exists."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def _check_system() -> Check:
    versions = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.platform != "linux":
        return Check("system", "problem", versions, "The recorder works on Linux only.")
    return Check("system", "ok", f"{versions}, {os.cpu_count()} CPUs")


def _check_recorder() -> Check:
    """Check whether spans are recorded by C or, more slowly, by Python."""
    from tracelens_instrument.core.backend import backend

    recorder, reason = backend()
    if recorder == "native":
        return Check("recorder", "ok", "native (C)")
    advice = "A span costs several times as much; install again where there is a C compiler."
    return Check("recorder", "note", f"Python, because {reason}", advice)


def _check_clock() -> Check:
    """Check how long reading the clock takes."""
    readings_ns = [time.perf_counter_ns() for _ in range(4001)]
    step_lengths_ns = [after - before for before, after in itertools.pairwise(readings_ns)]
    median_ns = statistics.median(step_lengths_ns)
    try:
        clock_source = _CLOCK_SOURCE.read_text().strip()
    except OSError:
        clock_source = "unknown"
    description = (
        f"source {clock_source}, {median_ns:.0f} ns a reading, "
        f"smallest step {min(step_lengths_ns)} ns"
    )
    if median_ns <= _MAX_NS_PER_READING:
        return Check("clock", "ok", description)
    advice = (
        "Reading the clock is slow here; a kernel that uses 'tsc' reads it without a system call."
    )
    return Check("clock", "note", description, advice)


def _check_folder(directory: Path) -> Check:
    """Check that the trace folder can be written, and has room for a trace."""
    from tracelens_instrument.storage.placement import (
        find_local_directory,
        find_mount,
        is_network,
        read_mounts,
    )

    folder = find_existing(directory)
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = "Choose another with --out or TRACELENS_DIR."
        return Check("trace folder", "problem", f"{folder} cannot be written", advice)
    mount = find_mount(folder, read_mounts())
    file_system = mount.filesystem_type if mount else "unknown type"
    free_bytes = shutil.disk_usage(folder).free
    description = f"{directory} on {file_system}, {free_bytes / _GIBIBYTE:.1f} GiB free"
    if mount and is_network(mount.filesystem_type):
        advice = f"Live segments go to {find_local_directory(folder)}."
        return Check("trace folder", "note", description, advice)
    if free_bytes < _GIBIBYTE:
        advice = "Free some room, or bound the recording with --budget or --keep last:N."
        return Check("trace folder", "note", description, advice)
    return Check("trace folder", "ok", description)


def _check_identity() -> Check:
    """Check which rank a program that is started here would record as."""
    from tracelens_instrument.core.identity import identify, read_launcher

    identity = identify(arguments={}, hook_values={})
    description = f"{identity.role} {identity.rank} of {identity.world}"
    if read_launcher(os.environ) is None:
        return Check("identity", "ok", f"{description}: no launcher has set a rank here")
    return Check("identity", "ok", f"{description}, as the launcher says")


def _check_environment() -> Check:
    variables = sorted(
        f"{name}={text}" for name, text in os.environ.items() if name.startswith("TRACELENS_")
    )
    return Check("environment", "ok", ", ".join(variables) or "no TRACELENS_ variable is set")


def _check_frameworks() -> Iterator[Check]:
    """Yield a check for each framework that hooks record: its version, if it is installed."""
    from tracelens_instrument.hooks import HOOKS

    for hook in HOOKS:
        package = hook.framework_module.partition(".")[0]
        version = _find_version(package)
        description = f"{version}, recorded without a change" if version else "not installed"
        yield Check(hook.framework_name, "ok", description)


def _check_extras() -> Iterator[Check]:
    """Yield a check for each extra: whether its modules are installed."""
    for extra, modules in _EXTRAS.items():
        missing = [name for name in modules if util.find_spec(name) is None]
        if missing:
            advice = str(MissingExtra.from_extra(", ".join(missing), extra))
            yield Check(f"extra {extra}", "note", "not installed", advice)
        else:
            yield Check(f"extra {extra}", "ok", "installed")


def _check_sampling() -> Check:
    """Check whether py-spy is installed, and may look into processes."""
    version = _find_version("py-spy")
    if version is None:
        advice = str(MissingExtra.from_extra("Sampling stacks", "sampling"))
        return Check("py-spy", "note", "not installed", advice)
    try:
        ptrace_scope = int(_PTRACE.read_text())
    except (OSError, ValueError):
        ptrace_scope = 0
    if ptrace_scope == 0 or os.geteuid() == 0:
        return Check("py-spy", "ok", f"{version}, may look into processes of this user")
    advice = "It may look only into processes that it starts itself (kernel.yama.ptrace_scope)."
    return Check("py-spy", "note", f"{version}, ptrace_scope {ptrace_scope}", advice)


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_trial(parent: Path, program: str = TRIAL_PROGRAM) -> Check:
    """Run a program that records into a folder below `parent` and is killed; read it all back."""
    name = "trial"
    try:
        folder = Path(tempfile.mkdtemp(prefix=".tracelens-doctor-", dir=parent))
    except OSError as error:
        return Check(name, "problem", f"no folder could be made in {parent} ({error.strerror})")
    try:
        error_text = _record_trial(folder, program)
        closed_count = _count_closed_spans(folder)
    except (OSError, TraceLensError, subprocess.TimeoutExpired) as error:
        return Check(name, "problem", f"a recording could not be read back ({error})")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if closed_count == SPANS:
        return Check(name, "ok", f"{SPANS} spans recorded, process killed, all read back")
    description = f"{closed_count} of {SPANS} spans were read back"
    return Check(name, "problem", description, advice=error_text.strip()[-500:])


def _record_trial(folder: Path, program: str) -> str:
    """Record in a process that kills itself; return what it wrote as errors, '' if it was killed."""
    other_variables = {
        name: text for name, text in os.environ.items() if not name.startswith("TRACELENS_")
    }
    recorder_variables = {
        name: os.environ[name]
        for name in ("TRACELENS_NATIVE", "TRACELENS_LOCAL_DIR")
        if name in os.environ
    }
    trial = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=other_variables | recorder_variables,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return "" if trial.returncode == -signal.SIGKILL else trial.stderr


def _count_closed_spans(folder: Path) -> int:
    """Count the closed spans of the killed recording."""
    from tracelens.conversion.segments import decode

    recordings = list(folder.iterdir())
    if not recordings:
        return 0
    events, _ = decode(recordings[0])
    return sum(status == "closed" for status in events["status"].to_pylist())
