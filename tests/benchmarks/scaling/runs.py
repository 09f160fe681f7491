"""The runs that are explained: simulated, and written as recorders would have.

Many ranks on hosts with skewed clocks, 33 events a rank and step, one rank slowed down by a quarter of
its backprop in the middle half of the steps. Each is written by a process of its own, whose memory goes
with it: 0.6 kB a rank and step, 1.9 GiB for 10^8 events.

Run: PYTHONPATH=. python tests/benchmarks/scaling/runs.py RANKSxSTEPS FOLDER
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.scaling.cost import measure_command

if TYPE_CHECKING:
    from tracelens.simulator.synthetic import Scenario

PER_RANK_AND_STEP: Final = 33
RANKS_PER_HOST: Final = 8
FILES: Final = "worker-*.arrow"


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    ranks: int
    steps: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read RANKSxSTEPS."""
        ranks, _, steps = text.partition("x")
        return cls(int(ranks), int(steps))

    def __str__(self) -> str:
        return f"{self.ranks} x {self.steps}"

    @property
    def folder(self) -> str:
        """What its folder is called."""
        return f"{self.ranks}x{self.steps}"

    @property
    def events(self) -> int:
        """Recorded events of all ranks."""
        return self.ranks * self.steps * PER_RANK_AND_STEP

    @property
    def title(self) -> str:
        """Ranks, steps and events in words."""
        return f"{self.ranks} ranks x {self.steps} steps, {self.events / 1e6:.2f} M events"

    @property
    def slow_rank(self) -> int:
        """The rank that is slowed down."""
        return self.ranks * 3 // 8

    def scenario(self) -> Scenario:
        """Return the run to simulate."""
        from tracelens.simulator.synthetic import (  # noqa: PLC0415 - whoever measures must be small
            Fault,
            Scenario,
            random_clocks,
        )

        middle = (self.steps // 4, 3 * self.steps // 4)
        return Scenario(
            ranks=self.ranks,
            ranks_per_host=RANKS_PER_HOST,
            steps=self.steps,
            layers=7,
            buckets=6,
            transfer_ms=0.3,
            clocks=random_clocks(-(-self.ranks // RANKS_PER_HOST)),
            faults=(Fault("backprop", (self.slow_rank,), steps=middle, factor=1.25),),
        )


def make_run(size: Size, folder: Path) -> Path:
    """Return the run's trace below `folder`; write it if it is not there yet."""
    trace = folder / size.folder
    if not trace.exists():
        unfinished = folder / f".{size.folder}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, __file__, size.folder, str(unfinished)]
        cost = measure_command(command, folder / "made.txt", environment=same_imports())
        unfinished.rename(trace)
        sys.stdout.write(f"  made {size.title}: {cost}\n")
    return trace


def written_bytes(trace: Path) -> int:
    """Return how large the recorded files of a trace are."""
    return sum(path.stat().st_size for path in trace.glob(FILES))


def forget(trace: Path, cache: Path) -> None:
    """Remove whatever a verb has kept beside the recorded files, and in the user's cache."""
    recorded = set(trace.glob(FILES))
    for path in set(trace.iterdir()) - recorded:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()


def same_imports() -> dict[str, str]:
    """Return an environment in which a script of ours finds what this process can import."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def apart(cache: Path, **more: str) -> dict[str, str]:
    """Return an environment in which what is kept for the user is in a folder of its own."""
    return os.environ | {"XDG_CACHE_HOME": str(cache)} | more


if __name__ == "__main__":
    from tracelens.simulator.synthetic import write

    write(Size.parse(sys.argv[1]).scenario(), Path(sys.argv[2]))
