"""A rank's calls as an icicle: width is time, colour how much longer than the median peer it took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go

from tracelens_dashboard import text
from tracelens_dashboard.figures.drawing import Drawing, empty, figure
from tracelens_dashboard.theme import mixed

if TYPE_CHECKING:
    import polars as pl

    from tracelens_dashboard.theme import Theme

FEW: Final = (
    "There are too few samples in this window and phase to tell where the time goes: choose more steps, "
    "or record with a higher rate (tracelens record --sample=250)."
)
WORTH_SAYING: Final = 0.01  # of all time shown: less is no difference between ranks
_PLACE: Final = re.compile(r"^(?P<name>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def draw(calls: pl.DataFrame, rank: int, peers: int, theme: Theme) -> Drawing:
    """Draw the calls; `calls` as `tracelens.lod.stacks.calls` returns them."""
    if calls.is_empty():
        return empty(theme, FEW)
    rows = calls.to_dicts()
    whole = max(rows[0]["ns"], 1.0)
    icicle = go.Icicle(
        ids=[str(row["call"]) for row in rows],
        parents=["" if row["parent"] is None else str(row["parent"]) for row in rows],
        labels=[_label(row, rank) for row in rows],
        values=[row["ns"] for row in rows],
        branchvalues="total",
        marker={
            "colors": [_colour(row, whole, theme) for row in rows],
            "line": {"width": 1, "color": theme.surface},
        },
        tiling={"orientation": "v"},
        customdata=[row["frame"] for row in rows],
        hovertext=[_hover(row, whole, peers) for row in rows],
        hovertemplate="%{hovertext}<extra></extra>",
        textfont={"size": 11},
        pathbar={"visible": True, "textfont": {"color": theme.text}},
        sort=True,
    )
    drawn = figure(theme, icicle, margin={"l": 2, "r": 2, "t": 26, "b": 2})
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


def _label(row: dict[str, Any], rank: int) -> str:
    return short(row["frame"]) if row["frame"] else f"rank {rank}"


def _colour(row: dict[str, Any], whole: float, theme: Theme) -> str:
    """Make calls that take longer than the peers' red, the others pale."""
    share = min(max(_excess(row) / whole, 0.0) * 3, 1.0)
    strong = share if share > WORTH_SAYING else 0.0
    return "rgb({},{},{})".format(*mixed(theme.loss, theme.flame, strong))


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
