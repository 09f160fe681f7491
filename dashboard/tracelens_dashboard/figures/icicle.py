"""A rank's calls as an icicle: width is time, colour how much longer than the median peer it took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import mixed, readable

if TYPE_CHECKING:
    import polars as pl

    from tracelens.lod.png import Colour
    from tracelens_dashboard.theme import Theme

FEW: Final = (
    "There are too few samples in this window and phase to tell where the time goes: choose more steps, "
    "or record with a higher rate (tracelens record --sample=250)."
)
TEXT_PX: Final = 12
WIDE: Final = 0.25  # of the whole: room for a file's name, too
ALL_OF_IT: Final = 0.995  # as calls that start a program do, which fork nowhere
WORTH_SAYING: Final = 0.01  # of all time shown: less is no difference between ranks
_PLACE: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def draw(calls: pl.DataFrame, rank: int, peers: int, theme: Theme) -> Drawing:
    """Draw the calls; `calls` as `tracelens.lod.stacks.calls` returns them."""
    if calls.is_empty():
        return empty(theme, FEW)
    rows = calls.to_dicts()
    whole = max(rows[0]["ns"], 1.0)
    shown, outer = _without_outer(rows)
    colours = [_colour(row, whole, theme) for row in shown]
    icicle = go.Icicle(
        ids=[str(row["call"]) for row in shown],
        parents=["" if row["parent"] is None else str(row["parent"]) for row in shown],
        labels=[_root(rank, outer), *(short(row["frame"]) for row in shown[1:])],
        text=[_root(rank, outer), *(_fitting(row, whole) for row in shown[1:])],
        texttemplate="%{text}",
        values=[row["ns"] for row in shown],
        branchvalues="total",
        marker={
            "colors": ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours],
            "line": {"width": 1, "color": theme.surface},
        },
        tiling={"orientation": "v"},
        customdata=[row["frame"] for row in shown],
        hovertext=[_hover(row, whole, peers) for row in shown],
        hovertemplate="%{hovertext}<extra></extra>",
        textfont={"size": TEXT_PX, "color": [readable(colour) for colour in colours]},
        leaf={"opacity": 1},
        textposition="middle left",
        pathbar={"visible": False},
        sort=True,
    )
    layout = {"margin": dict.fromkeys("lrtb", 2), "uniformtext": {"minsize": 10, "mode": "hide"}}
    drawn = figure(theme, icicle, **layout)
    return Drawing(drawn, sentence(calls, rank, peers), _rows(rows, whole))


def short(frame: str, most: int = 80) -> str:
    """Name a frame without the folders of its file, in at most so many letters."""
    match = _PLACE.match(frame)
    said = frame
    if match:
        file = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
        said = f"{match['name']} ({file}:{match['line']})"
    return text.safe(said if len(said) <= most else said[: most - 1] + "…")


def sentence(calls: pl.DataFrame, rank: int, peers: int) -> str:
    """Follow the excess down from the whole to the innermost call that holds most of it."""
    rows = calls.to_dicts()
    if not peers:
        return (
            f"Where rank {rank} spends {text.duration(rows[0]['ns'])}; no other rank was sampled."
        )
    here = rows[0]
    excess = _excess(here)
    if excess < WORTH_SAYING * here["ns"]:
        return f"Rank {rank} takes no longer here than the median of {_peers(peers)}."
    below: dict[int, list[dict[str, Any]]] = {}
    for row in rows[1:]:
        below.setdefault(row["parent"], []).append(row)
    while below.get(here["call"]):
        worst = max(below[here["call"]], key=_excess)
        if _excess(worst) < 0.6 * _excess(here):
            break
        here = worst
    where = f", most of it in {short(here['frame'])}" if here["frame"] else ""
    return f"Rank {rank} takes {text.duration(excess)} longer than the median of {_peers(peers)}{where}."


def _peers(peers: int) -> str:
    return text.count(peers, "other rank")


def _excess(row: dict[str, Any]) -> float:
    return float(row["ns"] - (row["peers_ns"] or 0.0)) if row["peers_ns"] is not None else 0.0


def _without_outer(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Leave out the calls that hold all of the time but for the innermost of them; say how many."""
    outer = [row for row in rows[1:] if row["ns"] >= ALL_OF_IT * rows[0]["ns"]]
    left_out = {row["call"] for row in outer[:-1]}
    kept = [row for row in rows if row["call"] not in left_out]
    root = rows[0]["call"]
    return [row | {"parent": root} if row["parent"] in left_out else row for row in kept], len(
        left_out
    )


def _root(rank: int, outer: int) -> str:
    left_out = f", below {text.count(outer, 'call')} that hold all of it" if outer else ""
    return f"rank {rank}{left_out}"


def _fitting(row: dict[str, Any], whole: float) -> str:
    """Name a call; where it is narrow without its file, as a text that is cut says less."""
    name = short(row["frame"])
    return name if row["ns"] >= WIDE * whole else name.partition(" (")[0]


def _colour(row: dict[str, Any], whole: float, theme: Theme) -> Colour:
    """Make calls that take longer than the peers' red, the others pale."""
    share = min(max(_excess(row) / whole, 0.0) * 3, 1.0)
    strong = share if share > WORTH_SAYING else 0.0
    return mixed(theme.loss, theme.flame, strong)


def _hover(row: dict[str, Any], whole: float, peers: int) -> str:
    said = f"{text.safe(row['frame']) or 'all'}<br>{text.duration(row['ns'])}"
    said += f", {text.percent(row['ns'] / whole)} of what is shown"
    if row["peers_ns"] is None:
        return said
    return f"{said}<br>the median of {_peers(peers)}: {text.duration(row['peers_ns'])}"


def _rows(rows: list[dict[str, Any]], whole: float) -> list[dict[str, Any]]:
    return [
        {
            "call": row["frame"] or "all",
            "of": rows[row["parent"]]["frame"] if row["parent"] else "",
            "took (ms)": round(row["ns"] / 1e6, 3),
            "%": round(100 * row["ns"] / whole, 2),
            "median peer (ms)": None
            if row["peers_ns"] is None
            else round(row["peers_ns"] / 1e6, 3),
        }
        for row in rows
    ]
