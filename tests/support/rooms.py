"""`make rooms`: the picture of the rooms in ARCHITECTURE.md, drawn from who imports whom.

Boxes are packages and single modules, in the layers that the import contracts in pyproject.toml name.
An arrow says "imports". It is left out where other arrows lead to the same box, and into the helpers
(dashed boxes), which any room may import.

Run: PYTHONPATH=tests python -m support.rooms [--out docs/pictures/rooms.svg]
"""

from __future__ import annotations

import argparse
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

from support.layout import ROOT, Import, imports, modules

PICTURE: Final = ROOT / "docs" / "pictures" / "rooms.svg"
ROW: Final = 74  # pixels from one layer to the next
BOX: Final = (118, 34)
APART: Final = 16  # pixels between boxes of a layer
MARGIN: Final = 26
HEAD: Final = 64  # pixels above the first layer: the panel's title
HELPERS: Final = frozenset(
    f"tracelens.{name}" for name in ("arrays", "errors", "parallel", "placement")
)
ROUNDS: Final = 24  # of ordering boxes so that few arrows cross
TITLES: Final = {
    "tracelens_instrument": ("recorder", "instrument/tracelens_instrument"),
    "tracelens": ("core", "tracelens"),
    "tracelens_dashboard": ("dashboard", "dashboard/tracelens_dashboard"),
}
COLOURS: Final = {
    "tracelens_instrument": ("#fdf3e7", "#b35c00"),
    "tracelens": ("#eef3fb", "#1f4e9c"),
    "tracelens_dashboard": ("#eef7f0", "#1c6b3a"),
}

Edge = tuple[str, str]


def room(module: str) -> str:
    """Return the package or module right below one of the three packages, or that package itself."""
    return ".".join(module.split(".")[:2])


def layers(package: str) -> list[list[str]]:
    """Return the layers that pyproject.toml names for a package, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract["containers"] == [package]:
            named = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
            return [[f"{package}.{name}" for name in layer] for layer in named]
    message = f"pyproject.toml has no layers for {package}"
    raise LookupError(message)


def between_rooms(edges: frozenset[Import]) -> frozenset[Edge]:
    """Return which room imports which, by whatever of its modules."""
    pairs = {(room(edge.importer), room(edge.imported)) for edge in edges}
    return frozenset((a, b) for a, b in pairs if a != b)


def without_implied(edges: frozenset[Edge]) -> list[Edge]:
    """Leave out an arrow if other arrows lead there, too (the transitive reduction)."""
    out: defaultdict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        out[a].add(b)

    def nodes_below(node: str) -> set[str]:
        return {node}.union(*(nodes_below(other) for other in out[node]))

    return sorted((a, b) for a, b in edges if all(b not in nodes_below(c) for c in out[a] - {b}))


@dataclass
class Panel:
    """One of the three packages: its rooms in layers, and a place where an arrow passes a layer."""

    package: str
    rows: list[list[str]]
    ways: list[list[str]] = field(default_factory=list)
    at: dict[str, float] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """How wide it is drawn."""
        return max(self.at[n] + _width(n) / 2 for row in self.rows for n in row) + MARGIN

    @property
    def height(self) -> float:
        """How high it is drawn."""
        return HEAD + ROW * (len(self.rows) - 1) + BOX[1] + MARGIN

    def y(self, name: str) -> float:
        """Return the height of the middle of a box, below the panel's upper edge."""
        row = next(i for i, names in enumerate(self.rows) if name in names)
        return HEAD + ROW * row + BOX[1] / 2


def _width(name: str) -> float:
    return 14 if name.startswith("via ") else BOX[0]


def panel_of(package: str, edges: frozenset[Edge]) -> Panel:
    """Place the rooms of a package: rows as in its contract, order so that few arrows cross."""
    panel = Panel(package, layers(package))
    row_of = {name: i for i, row in enumerate(panel.rows) for name in row}
    inside = frozenset((a, b) for a, b in edges if {a, b} <= row_of.keys() - HELPERS)
    for a, b in without_implied(inside):
        passed = [f"via {i} {a} {b}" for i in range(row_of[a] + 1, row_of[b])]
        for i, name in enumerate(passed, row_of[a] + 1):
            panel.rows[i].append(name)
        panel.ways.append([a, *passed, b])
    _order(panel)
    _place_boxes(panel)
    return panel


def _neighbours(panel: Panel) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    upper: defaultdict[str, list[str]] = defaultdict(list)
    lower: defaultdict[str, list[str]] = defaultdict(list)
    for way in panel.ways:
        for a, b in pairwise(way):
            lower[a].append(b)
            upper[b].append(a)
    return upper, lower


def _crossings(panel: Panel) -> int:
    """Count the pairs of arrows that cross between two layers."""
    index = {name: i for row in panel.rows for i, name in enumerate(row)}
    count = 0
    for upper in panel.rows:
        steps = [(index[a], index[b]) for way in panel.ways for a, b in pairwise(way) if a in upper]
        count += sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(steps) for c, d in steps[:i])
    return count


def _order(panel: Panel) -> None:
    """Sort each row by the middle of its neighbours, downwards and upwards; keep the best found."""
    upper, lower = _neighbours(panel)
    order, fewest = [list(row) for row in panel.rows], _crossings(panel)
    for turn in range(ROUNDS):
        linked, rows = (upper, panel.rows) if turn % 2 == 0 else (lower, panel.rows[::-1])
        spot = {n: i / max(1, len(row) - 1) for row in panel.rows for i, n in enumerate(row)}
        for row in rows:
            middle = {n: _mean([spot[o] for o in linked[n]], spot[n]) for n in row}
            row.sort(key=middle.__getitem__)
            spot.update({n: i / max(1, len(row) - 1) for i, n in enumerate(row)})
        if (now := _crossings(panel)) < fewest:
            order, fewest = [list(row) for row in panel.rows], now
    panel.rows = order


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _place_boxes(panel: Panel) -> None:
    """Give every box a place near its neighbours, without touching the next one."""
    upper, lower = _neighbours(panel)
    for row in panel.rows:
        _spread_row(panel, row, [float(i * BOX[0]) for i in range(len(row))])
    for turn in range(ROUNDS):
        for row in panel.rows if turn % 2 else panel.rows[::-1]:
            middle = _mean([panel.at[n] for n in row], 0)
            centres = [_mean([panel.at[o] for o in upper[n] + lower[n]], middle) for n in row]
            _spread_row(panel, row, centres)
    left = min(panel.at[n] - _width(n) / 2 for row in panel.rows for n in row)
    for name in panel.at:
        panel.at[name] += MARGIN - left


def _spread_row(panel: Panel, row: list[str], centres: list[float]) -> None:
    """Place a row from left to right and from right to left, and take the middle of both."""
    gaps = [(_width(a) + _width(b)) / 2 + APART for a, b in pairwise(row)]
    high = list(centres)
    for i, gap in enumerate(gaps, 1):
        high[i] = max(high[i], high[i - 1] + gap)
    low = list(centres)
    for i in reversed(range(len(gaps))):
        low[i] = min(low[i], low[i + 1] - gaps[i])
    for name, a, b in zip(row, low, high, strict=True):
        panel.at[name] = (a + b) / 2


def draw() -> str:
    """Return the picture as SVG."""
    edges = between_rooms(imports(modules()))
    panels = {package: panel_of(package, edges) for package in TITLES}
    core = panels["tracelens"]
    gap = 96
    lefts: dict[str, float] = {}
    x: float = 10
    for package, panel in panels.items():
        lefts[package] = x
        x += panel.width + gap
    size = (x - gap + 10, core.height + 20)
    parts = [_panel(panel, lefts[package]) for package, panel in panels.items()]
    parts += _wings(panels, lefts, edges)
    return _SVG.format(width=f"{size[0]:.0f}", height=f"{size[1]:.0f}", parts="\n".join(parts))


_SVG: Final = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" \
font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13">
<title>The rooms of TraceLens: which package imports which</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#44505f"/></marker>
<style>.arrow {{ fill: none; stroke: #44505f; marker-end: url(#head) }}</style></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{parts}
</svg>
"""


def _panel(panel: Panel, x_left: float) -> str:
    fill, ink = COLOURS[panel.package]
    title, folder = TITLES[panel.package]
    x, width = f"{x_left:.0f}", f"{panel.width:.0f}"
    shapes = [
        f'<rect x="{x}" y="10" width="{width}" height="{panel.height:.0f}" rx="10" fill="{fill}"/>',
        f'<g transform="translate({x_left + 16:.0f},34)">',
        f'<text font-size="16" font-weight="bold" fill="{ink}">{title}</text>',
        f'<text y="18" font-size="11" fill="#44505f">{folder}</text></g>',
    ]
    shapes += [_arrow(panel, way, x_left) for way in panel.ways]
    shapes += [
        _box(panel, name, x_left, ink)
        for row in panel.rows
        for name in row
        if not name.startswith("via ")
    ]
    return "\n".join(shapes)


def _box(panel: Panel, name: str, left: float, ink: str) -> str:
    x, y = left + panel.at[name] - BOX[0] / 2, 10 + panel.y(name) - BOX[1] / 2
    dashed = ' stroke-dasharray="4 3"' if name in HELPERS else ""
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="5" '
        f'fill="#ffffff" stroke="{ink}"{dashed}/>'
        f'<text x="{x + BOX[0] / 2:.0f}" y="{y + 22:.0f}" text-anchor="middle" fill="#1b2430">'
        f"{escape(name.rpartition('.')[2])}</text>"
    )


def _arrow(panel: Panel, way: list[str], left: float) -> str:
    """Draw an arrow as a smooth line through the places that are kept for it."""
    points = [(left + panel.at[name], 10 + panel.y(name)) for name in way]
    start, end = points[0], points[-1]
    stops = [(start[0], start[1] + BOX[1] / 2), *points[1:-1], (end[0], end[1] - BOX[1] / 2)]
    path = f"M{stops[0][0]:.0f},{stops[0][1]:.0f}"
    for (ax, ay), (bx, by) in pairwise(stops):
        middle = (ay + by) / 2
        path += f" C{ax:.0f},{middle:.0f} {bx:.0f},{middle:.0f} {bx:.0f},{by:.0f}"
    return f'<path d="{path}" class="arrow" stroke-width="1.2"/>'


def _wings(panels: dict[str, Panel], lefts: dict[str, float], edges: frozenset[Edge]) -> list[str]:
    """Draw what leads from the recorder and the dashboard into the core, and what the core starts."""
    shapes: list[str] = []
    core = panels["tracelens"]
    core_left, core_right = lefts["tracelens"], lefts["tracelens"] + core.width
    for wing, side in (("tracelens_instrument", core_left), ("tracelens_dashboard", core_right)):
        panel = panels[wing]
        middle = lefts[wing] + panel.width / 2
        used = sorted(
            {b.rpartition(".")[2] for a, b in edges if a.startswith(wing) and _of_core(b)}
        )
        bottom = 10 + panel.height
        y = min(core.height - 30, bottom + 40 + 17 * len(_wrapped(used)) + 24)
        shapes.append(
            f'<path d="M{middle:.0f},{bottom:.0f} L{middle:.0f},{y:.0f} L{side:.0f},{y:.0f}" '
            'class="arrow" stroke-width="2.4"/>'
        )
        shapes += [
            f'<text x="{middle + 12:.0f}" y="{bottom + 26 + 17 * i:.0f}" fill="#1b2430">{line}</text>'
            for i, line in enumerate(["imports", *_wrapped(used)])
        ]
        y = 10 + core.y("tracelens.cli")
        x_begin = lefts[wing] if wing == "tracelens_dashboard" else lefts[wing] + panel.width
        verbs = "record" if wing == "tracelens_instrument" else "serve"
        shapes.append(
            f'<path d="M{side:.0f},{y:.0f} L{x_begin:.0f},{y:.0f}" class="arrow" '
            'stroke-width="1.6" stroke-dasharray="5 4"/>'
            f'<text x="{(side + x_begin) / 2:.0f}" y="{y - 8:.0f}" text-anchor="middle" font-size="11" '
            f'fill="#44505f">{verbs}</text>'
        )
    return shapes


def _of_core(name: str) -> bool:
    return name.startswith("tracelens.")


def _wrapped(names: list[str], most: int = 26) -> list[str]:
    """Break a list of names into short lines."""
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > most:
            lines.append("")
        lines[-1] += f"{name}, "
    lines[-1] = lines[-1].removesuffix(", ")
    return lines


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    asked.out.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
