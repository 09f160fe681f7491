"""The results as text: tables in Markdown, and our promises held against them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.published import table
from benchmarks.recorders.by_hand import INLINE
from benchmarks.recorders.known import RECORDERS
from benchmarks.recorders.ours import MAIN, TraceLens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.recorders.found import Found, Middle
    from benchmarks.recorders.starting import Start
    from benchmarks.recorders.timing import Row

__all__ = ["cost_of_ours", "cost_of_peers", "kept_and_started", "promises"]

NONE = "-"


def write_interval(found: Middle, digits: int = 2) -> str:
    """Write a ratio with its interval."""
    value, low, high = (f"{number:.{digits}f}" for number in found)
    return f"{value} ({low} to {high})"


def cost_of_ours(found: Mapping[str, Found]) -> str:
    """Return the tables of all our ways to record, recording and switched off."""
    titles = (("TraceLens, recording", True), ("TraceLens, switched off", False))
    return "\n\n".join(_own_table(title, found, active=on) for title, on in titles)


def _own_table(title: str, results: Mapping[str, Found], *, active: bool) -> str:
    head = ["a span by", *(f"{name}: {what}" for name in results for what in ("ratio", "ns"))]
    first = next(iter(results.values()))
    arms = [first.of("", INLINE, on=active), *first.ours(on=active)]
    names = {INLINE: "two clock reads and a list append, inline"}
    body = []
    for row in arms:
        cells = [f"`{row.arm}`" if row.recorder else names[row.arm]]
        for measured in results.values():
            mine = measured.of(row.recorder, row.arm, on=active)
            cells += [write_interval(measured.to_inline(mine)) if row.recorder else "1", _ns(mine)]
        body.append(cells)
    return table(title, head, body)


def cost_of_peers(found: Found, failed: Mapping[str, str]) -> str:
    """Return the table of everything else, in the same process as our native recorder."""
    tables = []
    for title, active in (("recording", True), ("switched off, or with nobody who listens", False)):
        head = ["recorder", "a span by", "API", "stores", "x inline", f"x `{MAIN}`", "ns"]
        body = [
            [
                row.recorder,
                f"`{row.arm}`",
                row.api,
                row.stores,
                f"{found.to_inline(row).value:.1f}",
                write_interval(found.to_ours(row), 1),
                _ns(row),
            ]
            for row in found.peers(on=active)
        ]
        tables.append(table(f"Others, {title}", head, body))
    missing = [f"- {name}: {reason}" for name, reason in failed.items()]
    return "\n\n".join([*tables, "Not measured while recording:", "\n".join(missing)])


def kept_and_started(
    ended: Sequence[Mapping[str, Any]],
    killed: Sequence[Mapping[str, Any]],
    started: Mapping[str, Start],
    versions: Mapping[str, str],
) -> str:
    """Return the table of what is left on disk, and of what a start costs."""
    head = ["recorder", "version", "bytes a span on disk", "closed spans that a SIGKILL leaves"]
    head += ["import and start: CPU ms", "wall ms"]
    body = []
    for name in (kind.name for kind in RECORDERS if kind.name in started):
        sizes = [row for row in ended if row["recorder"] == name]
        kills = [row for row in killed if row["recorder"] == name]
        start = started[name]
        body.append([name, versions.get(name, NONE), _size(sizes), _share(kills)])
        body[-1] += [f"{start.cpu_ms:.1f}", f"{start.wall_ms:.1f}"]
    return table("Left on disk, and the start", head, body)


def _size(rows: Sequence[Mapping[str, Any]]) -> str:
    kept = sum(row["kept"] for row in rows)
    return f"{sum(row['bytes'] for row in rows) / kept:.1f}" if kept else NONE


def _share(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return NONE
    closed, kept_count = (sum(row[what] for row in rows) for what in ("closed", "kept"))
    lost = [row["closed"] - row["kept"] for row in rows]
    if not any(lost):
        return f"all of {closed:,}"
    if not kept_count:
        return f"none of {closed:,}"
    return f"{kept_count:,} of {closed:,}; {min(lost):,} to {max(lost):,} lost a kill"


def _ns(row: Row) -> str:
    return f"{statistics.median(row.ns):,.0f}"


def promises(found: Mapping[str, Found]) -> str:
    """Hold what the recorder promises against what was measured."""
    body = [
        [said, f"{bound}", measured, "yes" if held else "**no**"]
        for said, bound, measured, held in _promises(found)
    ]
    return table("Promises", ["promise", "bound", "measured", "held"], body)


def _promises(results: Mapping[str, Found]) -> list[tuple[str, str, str, bool]]:
    rows = []
    for backend, arm, active, bound in _BOUNDS:
        if backend in results:
            ratio = results[backend].to_inline(results[backend].of(TraceLens.name, arm, on=active))
            promise = f"{backend}{'' if active else ', switched off'}: `{arm}`, of inline"
            rows.append((promise, f"<= {bound:.2f}", write_interval(ratio), ratio.value <= bound))
    peers = next(iter(results.values()))
    for row in peers.peers(on=True):
        times = 35 if row.recorder == "torch.profiler" and row.api == "public" else 5
        if row.api == "public" and (row.stores == "attributes" or times == 35):
            ratio = peers.to_ours(row)
            promise = f"{row.recorder}: `{row.arm}`, of `{MAIN}`"
            rows.append((promise, f">= {times}", write_interval(ratio, 1), ratio.value >= times))
    return rows


# Recorder, way, recording, at most so many times the inline yardstick.
_BOUNDS = (
    ("native", MAIN, True, 0.80),
    ("native", "with SPAN:", True, 0.60),
    ("native", "SPAN.begin() ... token.end()", True, 0.40),
    ("python", MAIN, True, 4.0),
    ("python", "with SPAN:", True, 4.0),
    ("python", "SPAN.begin() ... token.end()", True, 4.0),
    ("native", "with SPAN:", False, 0.45),
    ("python", "with SPAN:", False, 1.3),
)
