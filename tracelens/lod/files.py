"""A `Run` as files: arrays that are mapped, tables as Arrow, and the rest as JSON.

The columns of lanes are written part by part, so that memory holds one part. The report is written
without the analyses' results, and read again without loss.
"""

from __future__ import annotations

import json
import mmap
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.lib import format as npy

from tracelens.align.clocks.common import ClockMap
from tracelens.lod import residuals, run_data
from tracelens.lod.lanes import MARK, Lane, Lanes, base_of
from tracelens.lod.pyramid import COLOURS, PEAKS, Bins, Pyramid, file_of, ladder_of, loaded, mapped
from tracelens.lod.query import Scene
from tracelens.lod.run_data import Run
from tracelens.lod.step_times import Times
from tracelens.lod.viewport import Window
from tracelens.model.findings import Finding
from tracelens.model.result import Efficiency, Report, Share, Summary
from tracelens.model.trace import Alignment, HostClock, Note
from tracelens.schema.json_text import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tracelens.arrays import Ints
    from tracelens.model.result import Result
    from tracelens.model.trace import Moved

    OnProgress = Callable[[int, int], None]

TYPES: Final[dict[str, np.dtype[Any]]] = {
    "starts": np.dtype(np.int64),
    "ends": np.dtype(np.int64),
    "codes": np.dtype(np.uint8),
    "steps": np.dtype(np.int32),
    "names": np.dtype(np.int32),
}
OFFSETS: Final = "offsets"
MARKS: Final = "marks"
TABLES: Final = ("workers", "shards", "threads", "windows", "loads", "traffic")
_MOVED: Final = "clocks.json"
_CALLS: Final = "calls.arrow"
_FACTS: Final = "run.json"
_REPORT: Final = "report.json"


def save_lanes(
    parts: Iterable[Lanes],
    folder: Path,
    what: str,
    total: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Ints, tuple[str, ...]]:
    """Write the columns of all parts; return the offsets of their lanes, and their words."""
    words: dict[tuple[str, ...], int] = {}
    counts = [0]
    marks: list[tuple[Ints, Ints]] = []
    with ExitStack() as stack:
        files = {name: stack.enter_context(_file(folder, what, name).open("wb")) for name in TYPES}
        for name, file in files.items():
            _header(file, name, 0)
        for part in parts:
            base = base_of(words, part.words)
            for name, file in files.items():
                values = part.names + base if name == "names" else getattr(part, name)
                np.ascontiguousarray(values, TYPES[name]).tofile(file)
            marked = slice(-sum(counts) % MARK, None, MARK)
            marks.append((part.starts[marked], part.ends[marked]))
            counts += np.diff(part.offsets).tolist()
            if on_progress:
                on_progress(len(counts) - 1, total)
        for name, file in files.items():
            file.seek(0)
            _header(file, name, sum(counts))
    offsets = np.cumsum(counts)
    np.save(_file(folder, what, OFFSETS), offsets)
    none = np.zeros((2, 0), np.int64)
    np.save(_file(folder, what, MARKS), np.concatenate([none, *map(np.array, marks)], axis=1))
    return offsets, tuple(word for group in words for word in group)


def load_lanes(folder: Path, what: str, lanes: Sequence[Lane], words: Sequence[str]) -> Lanes:
    """Open what `save_lanes` wrote."""
    starts, ends = loaded(_file(folder, what, MARKS))
    found = {name: mapped(_file(folder, what, name)) for name in (OFFSETS, *TYPES)}
    return Lanes(lanes=tuple(lanes), words=tuple(words), marks=(starts, ends), **found)


def let_go(lanes: Lanes) -> None:
    """Unmap what was looked at of some lanes; the system still has it, if there is room for it."""
    for name in TYPES:
        owner = getattr(lanes, name)
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = getattr(owner, "base", None)
        if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)


def _header(file: BinaryIO, name: str, count: int) -> None:
    """Write a header, which is as long for any count."""
    facts = {"descr": npy.dtype_to_descr(TYPES[name]), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(file, facts)


def _file(folder: Path, what: str, name: str) -> Path:
    return folder / f"{what}-{name}.npy"


def save_report(report: Report, file: Path) -> None:
    """Write a report; numbers that JSON lacks are written as Python reads them."""
    file.write_text(json.dumps(asdict(replace(report, results={})), default=_plain))


def load_report(file: Path, results: Mapping[str, Result] | None = None) -> Report:
    """Read what `save_report` wrote; `results` are given to the report."""
    row = loads(file.read_text())
    clock, efficiency = row["clock"], row["efficiency"]
    hosts = (HostClock(**_fixed(host)) for host in clock["hosts"])
    return Report(
        summary=Summary(**row["summary"]),
        clock=Alignment(clock["method"], tuple(hosts)),
        efficiency=_efficiency(efficiency) if efficiency else None,
        findings=tuple(Finding(**_fixed(finding)) for finding in row["findings"]),
        notes=tuple(Note(**note) for note in row["notes"]),
        results=results or {},
    )


def _efficiency(row: dict[str, Any]) -> Efficiency:
    return Efficiency(**(row | {"waterfall": tuple(Share(**bar) for bar in row["waterfall"])}))


def _fixed(row: dict[str, Any]) -> dict[str, Any]:
    """Restore the tuples of a record."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else list(value)


def save_run(run: Run, parts: Iterable[Lanes], folder: Path, on_progress: OnProgress) -> None:
    """Write everything but the colour levels into an empty folder.

    The spans come part by part, in the order of the run's lanes, which need not hold them.
    """
    scene, times = run.scene, run.times
    assert scene.peaks
    for rung in scene.peaks.ladder:
        np.save(file_of(folder, PEAKS, rung), scene.peaks.found[rung.width_ns])
    for name in TABLES:
        getattr(run, name).write_ipc(folder / f"{name}.arrow")
    for name, table in run.tables.items():
        table.write_ipc(_table(folder, name))
    save_report(run.report, folder / _REPORT)
    run_data.save_glance(run, folder)
    offsets, words = save_lanes(parts, folder, "spans", len(scene.lanes), on_progress)
    save_lanes([scene.steps], folder, "steps", len(scene.lanes))
    ladder = ladder_of(offsets, scene.whole)
    np.save(folder / "times.npy", times.ns)
    np.save(folder / "there.npy", times.there)
    facts = {
        "name": run.name,
        "whole": [scene.whole.start_ns, scene.whole.end_ns],
        "step_ns": scene.step_ns,
        "lanes": [[lane.process, lane.role, lane.rank, lane.part] for lane in scene.lanes.lanes],
        "words": {"spans": words, "steps": scene.steps.words},
        "ladders": {
            COLOURS: [asdict(rung) for rung in ladder],
            PEAKS: [asdict(rung) for rung in scene.peaks.ladder],
        },
        "times": {
            "ranks": times.ranks,
            "steps": times.steps,
            "categories": times.categories,
            "usual_ns": times.usual_ns,
        },
    }
    run.calls.sort("communicator", "seq").collect().write_ipc(folder / _CALLS)
    (folder / _MOVED).write_text(json.dumps(_moved(run.moved)))
    (folder / _FACTS).write_text(json.dumps(facts))


def load_run(folder: Path) -> Run:
    """Open what `save_run` wrote; arrays are mapped, not read.

    Raises:
        OSError: it lacks something, such as a table that pages have come to need since.
    """
    facts = loads((folder / _FACTS).read_text())
    lanes = tuple(Lane(*row) for row in facts["lanes"])
    scene = Scene(
        lanes=load_lanes(folder, "spans", lanes, facts["words"]["spans"]),
        steps=load_lanes(folder, "steps", lanes, facts["words"]["steps"]),
        whole=Window(*facts["whole"]),
        step_ns=facts["step_ns"],
        peaks=_pyramid(PEAKS, folder, facts),
        pyramid=_pyramid(COLOURS, folder, facts),
    )
    times = _load_times(folder, facts["times"])
    return Run(
        name=facts["name"],
        report=load_report(folder / _REPORT),
        tables={name: pl.read_ipc(_table(folder, name)) for name in run_data.KEPT_TABLES},
        times=times,
        residuals=residuals.measure(times),
        scene=scene,
        moved=_load_moved(folder),
        calls=pl.scan_ipc(folder / _CALLS),
        **{name: pl.read_ipc(folder / f"{name}.arrow") for name in TABLES},
    )


def _table(folder: Path, name: str) -> Path:
    return folder / f"table-{name}.arrow"


def _moved(moved: Mapping[int, Moved]) -> dict[str, Any]:
    """Describe how processes' times were moved; many share a clock."""
    maps = {id(found): found for found in moved.values() if isinstance(found, ClockMap)}
    place = {key: index for index, key in enumerate(maps)}
    rows = [found.row for found in maps.values()]
    return {"clocks": rows, "processes": [[p, place[id(found)]] for p, found in moved.items()]}


def _load_moved(folder: Path) -> dict[int, Moved]:
    facts = loads((folder / _MOVED).read_text())
    maps = [ClockMap.of(row) for row in facts["clocks"]]
    return {process: maps[clock] for process, clock in facts["processes"]}


def _pyramid(kind: str, folder: Path, facts: dict[str, Any]) -> Pyramid:
    return Pyramid(kind, tuple(Bins(**rung) for rung in facts["ladders"][kind]), folder)


def _load_times(folder: Path, facts: dict[str, Any]) -> Times:
    ns, there = mapped(folder / "times.npy"), mapped(folder / "there.npy")
    ranks, steps, categories = (tuple(facts[name]) for name in ("ranks", "steps", "categories"))
    return Times(ranks, steps, categories, ns, there, facts["usual_ns"])
