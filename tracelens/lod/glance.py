"""A run at a glance: the few numbers and the one sentence that a list of runs shows of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.lod.grid import parts
from tracelens.schema.light_json import loads

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.analyses.result import Report
    from tracelens.lod.run import Run

FILE: Final = "glance.json"
MOST_POINTS: Final = 120
NO_FAULT: Final = "No fault was found."


@dataclass(frozen=True)
class Glance:
    """Sizes of a run, its usual step, its efficiency and the worst that was found in it.

    `pace_ns` is how long steps took over the run: of neighbouring steps, the longest.
    """

    ranks: int
    shards: int
    steps: int
    duration_ns: int
    step_ns: int
    efficiency: float | None
    faults: int
    verdict: str
    pace_ns: tuple[int, ...]

    @classmethod
    def of(cls, run: Run) -> Glance:
        """Take it from a run."""
        lengths = (run.windows["end_ns"] - run.windows["start_ns"]).to_numpy()
        efficiency = run.report.efficiency
        return cls(
            ranks=run.workers.height,
            shards=run.shards.height,
            steps=len(lengths),
            duration_ns=run.scene.whole.width_ns,
            step_ns=int(np.median(lengths)) if len(lengths) else 0,
            efficiency=efficiency.achieved if efficiency else None,
            faults=sum(finding.category == "fault" for finding in run.report.findings),
            verdict=verdict(run.report),
            pace_ns=tuple(int(lengths[part].max()) for part in parts(len(lengths), MOST_POINTS)),
        )


def verdict(report: Report) -> str:
    """Say the worst fault of a report, or that there is none."""
    faults = (f.sentence for f in report.findings if f.category == "fault")
    return next(faults, NO_FAULT)


def save(run: Run, folder: Path) -> None:
    """Write it beside the rest of an index."""
    (folder / FILE).write_text(json.dumps(asdict(Glance.of(run))))


def load(folder: Path) -> Glance:
    """Read what `save` wrote."""
    row = loads((folder / FILE).read_text())
    return Glance(**(row | {"pace_ns": tuple(row["pace_ns"])}))
