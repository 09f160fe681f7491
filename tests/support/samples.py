"""Record the sample traces, and hold a report against what its manifest entry says is planted.

Run as a program it records all of `sample_traces/` anew, or those that are named into ``traces/NAME``:
it explains these, and fails if what is planted in one is not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.launch.patience import PATIENCE_S
from support.runs.cached import fingerprint, load_or_make

import tracelens as tl

if TYPE_CHECKING:
    from tracelens.model.findings import Finding
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

ROOT: Final = Path(__file__).parents[2]
SAMPLES: Final = ROOT / "sample_traces"
EXAMPLES: Final = ROOT / "instrument" / "examples"
EDGE: Final = 5  # steps; a block of the detector, and one for the step in which a delay begins


@dataclass(frozen=True)
class Sample:
    """One entry of the manifest."""

    name: str
    about: str
    launcher: str
    ranks: int
    script: str
    arguments: list[str]
    killed: bool = False
    record: list[str] = field(default_factory=list)  # options of `tracelens record`
    hosts: list[str] = field(default_factory=list)  # options of pretend_hosts.py, on which it runs
    environment: str = ".venv"  # what it needs beside that is installed there
    unknown: float = 0.05  # the most of its time of which nothing is recorded
    expect: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the committed trace lies."""
        return SAMPLES / self.name

    @property
    def cheap(self) -> bool:
        """Whether it can be recorded anywhere, with what the tests need anyway."""
        return self.environment == ".venv" and self.launcher != "pretend_hosts"

    def shortened(self, steps: int) -> Sample:
        """Return the same with so many steps."""
        others = [word for word in self.arguments if not word.startswith("--steps")]
        stepwise = len(others) < len(self.arguments)
        return replace(self, arguments=[*others, *([f"--steps={steps}"] if stepwise else [])])


def manifest() -> list[Sample]:
    """Every sample that is documented."""
    entries = tomllib.loads((SAMPLES / "manifest.toml").read_text())
    return [Sample(name=name, **entry) for name, entry in entries.items()]


@cache
def sample_trace(name: str) -> Trace:
    """Open the committed trace of a sample."""
    folder = SAMPLES / name
    return load_or_make(f"trace {fingerprint(folder)}", lambda: tl.open(folder))


@cache
def sample_report(name: str) -> Report:
    """Analyze the committed trace of a sample."""
    key = f"report {fingerprint(SAMPLES / name)}"
    return load_or_make(key, lambda: tl.analyze(sample_trace(name)))


def record(sample: Sample, folder: Path) -> None:
    """Run the sample's training for real, recorded into `folder`."""
    python = sys.executable
    if sample.environment != ".venv":
        python = str(ROOT / sample.environment / "bin" / "python")
    command = [python, "-m", "tracelens", "record", "--out", str(folder), *sample.record, "--"]
    done = subprocess.run(
        [*command, *_training(sample, python)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    if done.returncode and not sample.killed:
        raise RuntimeError(f"{sample.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def _training(sample: Sample, python: str) -> list[str]:
    """Return the command that starts the training."""
    binaries = Path(python).parent
    script = [str(EXAMPLES / sample.script), *sample.arguments]
    count = str(sample.ranks)
    mpi = [python, "-m", "mpi4py", *script]
    match sample.launcher:
        case "torchrun":
            options = ["--standalone", f"--nproc-per-node={count}"]
            return [python, "-m", "torch.distributed.run", *options, *script]
        case "mpiexec":
            return [str(binaries / "mpiexec"), "-n", count, *mpi]
        case "horovodrun":
            return [python, str(binaries / "horovodrun"), "-np", count, "--gloo", python, *script]
        case "pretend_hosts":
            hosts = [python, str(EXAMPLES / "pretend_hosts.py"), f"--hosts={count}", *sample.hosts]
            return [*hosts, "--", *(mpi if sample.script.startswith("mpi_") else [python, *script])]
        case "python":  # it starts its processes itself
            return [python, *script, f"--workers={count}"]
        case _:  # so does this one, in a number of its own
            return [python, *script]


def differences(report: Report, expect: dict[str, Any], edge: int = EDGE) -> list[str]:
    """Say in what the report's first finding differs from what was planted; empty = as planted.

    Steps may begin and end `edge` steps beside the planted ones.
    """
    faults = [finding for finding in report.findings if finding.category == "fault"]
    if not expect:
        return [f"a fault where none is planted: {fault.sentence}" for fault in faults]
    if not report.findings:
        return ["no finding at all"]
    return departures(report.findings[0], expect, edge)


def departures(finding: Finding, expect: dict[str, Any], edge: int = EDGE) -> list[str]:
    """Say in what a finding differs from what was planted."""
    actual = {
        "kind": finding.kind,
        "ranks": list(finding.ranks),
        "shards": list(finding.shards),
        "phase": finding.phase,
        "function": finding.function.partition(" ")[0] if finding.function else None,
    }
    wrong = [
        f"{key}: planted {expect[key]!r}, found {actual[key]!r}"
        for key in actual
        if key in expect and expect[key] != actual[key]
    ]
    if "steps" in expect and not _near(finding.steps, expect["steps"], edge):
        wrong.append(f"steps: planted {expect['steps']}, found {finding.steps}")
    return [f"{difference} ({finding.sentence})" for difference in wrong]


def _near(found: tuple[int, int] | None, planted: list[int], edge: int) -> bool:
    return found is not None and all(
        abs(a - b) <= edge for a, b in zip(found, planted, strict=True)
    )


def explain(sample: Sample, folder: Path) -> None:
    """Print the report of a recorded sample.

    Raises:
        SystemExit: none of its findings is what was planted; it says what was found instead.
    """
    words = [sys.executable, "-m", "tracelens", "analyze", str(folder)]
    subprocess.run(words, check=True)
    report = tl.analyze(tl.open(folder))
    if not sample.expect:  # a busy machine may have done something to it
        sys.stdout.writelines(f"{wrong}\n" for wrong in differences(report, {}))
    elif not any(departures(one, sample.expect) == [] for one in report.findings):
        wrong = "; ".join(differences(report, sample.expect))
        raise SystemExit(f"{sample.name}: what is planted was not found: {wrong}")


def main() -> None:
    """Record every sample anew, or explain those that are named."""
    sample_names = sys.argv[1:]
    samples = {sample.name: sample for sample in manifest()}
    if unknown := set(sample_names) - set(samples):
        raise SystemExit(f"no such example: {', '.join(unknown)}; there are {', '.join(samples)}")
    for sample in [samples[name] for name in sample_names] or samples.values():
        sys.stdout.write(f"{sample.name}: {sample.about}\n")
        sys.stdout.flush()
        folder = ROOT / "traces" / sample.name if sample_names else sample.folder
        shutil.rmtree(folder, ignore_errors=True)
        try:
            record(sample, folder)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise SystemExit(f"{sample.name} could not be recorded: {error}") from error
        if sample_names:
            explain(sample, folder)


if __name__ == "__main__":
    main()
