"""Record the sample traces, and hold a report against what its manifest entry says is planted.

Run as a program it records all of `sample_traces/` anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracelens.analyses.result import Finding, Report

ROOT: Final = Path(__file__).parents[2]
SAMPLES: Final = ROOT / "sample_traces"
EDGE: Final = 5  # steps; a block of the detector, and one for the step in which a delay begins
TIME_LIMIT: Final = 240


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
    expect: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the committed trace lies."""
        return SAMPLES / self.name


def manifest() -> list[Sample]:
    """Every sample that is documented."""
    entries = tomllib.loads((SAMPLES / "manifest.toml").read_text())
    return [Sample(name=name, **entry) for name, entry in entries.items()]


def record(sample: Sample, folder: Path) -> None:
    """Run the sample's training for real, recorded into `folder`."""
    binaries = Path(sys.executable).parent
    script = [str(ROOT / "instrument" / "examples" / sample.script), *sample.arguments]
    if sample.launcher == "torchrun":
        options = ["--standalone", f"--nproc-per-node={sample.ranks}"]
        training = [str(binaries / "torchrun"), *options, *script]
    elif sample.launcher == "mpiexec":
        launcher = [str(binaries / "mpiexec"), "-n", str(sample.ranks)]
        training = [*launcher, sys.executable, "-m", "mpi4py", *script]
    else:  # it starts its processes itself
        training = [sys.executable, *script, f"--workers={sample.ranks}"]
    command = [sys.executable, "-m", "tracelens", "record", "--out", str(folder), "--", *training]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIME_LIMIT, cwd=ROOT
    )
    if done.returncode and not sample.killed:
        raise RuntimeError(f"{sample.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def differences(report: Report, expect: dict[str, Any]) -> list[str]:
    """Say in what the report's first finding differs from what was planted; empty = as planted."""
    faults = [finding for finding in report.findings if finding.category == "fault"]
    if not expect:
        return [f"a fault where none is planted: {fault.sentence}" for fault in faults]
    if not report.findings:
        return ["no finding at all"]
    return _differences(report.findings[0], expect)


def _differences(first: Finding, expect: dict[str, Any]) -> list[str]:
    found = {
        "kind": first.kind,
        "ranks": list(first.ranks),
        "shards": list(first.shards),
        "phase": first.phase,
    }
    wrong = [
        f"{key}: planted {expect[key]!r}, found {found[key]!r}"
        for key in found
        if key in expect and expect[key] != found[key]
    ]
    if "steps" in expect and not _near(first.steps, expect["steps"]):
        wrong.append(f"steps: planted {expect['steps']}, found {first.steps}")
    return [f"{difference} ({first.sentence})" for difference in wrong]


def _near(found: tuple[int, int] | None, planted: list[int]) -> bool:
    return found is not None and all(
        abs(a - b) <= EDGE for a, b in zip(found, planted, strict=True)
    )


def main() -> None:
    """Record every sample anew."""
    for sample in manifest():
        sys.stdout.write(f"{sample.name}: {sample.about}\n")
        sys.stdout.flush()
        shutil.rmtree(sample.folder, ignore_errors=True)
        record(sample, sample.folder)


if __name__ == "__main__":
    main()
