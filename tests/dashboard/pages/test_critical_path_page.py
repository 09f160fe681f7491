"""The critical path's page: its ranks, its categories, and marks that lead to it."""

from functools import cache

import polars as pl
import pytest
from support.web.stores import SLOW_RANK, alone, slow_rank, traced
from support.web.views import view_of

from tracelens.accounting import phases
from tracelens.analyses import critical_path
from tracelens.facts import Facts
from tracelens_dashboard.figures import critical_path as figures_critical_path
from tracelens_dashboard.figures.axes import write_cell_values
from tracelens_dashboard.pages import critical_path as page
from tracelens_dashboard.theme import DARK, LIGHT

NONE = pl.DataFrame()


@cache
def walk_path() -> critical_path.CriticalPath:
    """Walk the path of a run whose rank 2 is slow in backprop of steps 20-39."""
    trace = traced(SLOW_RANK)
    return critical_path.run(Facts(trace, phases.run(trace)))


def test_the_strip_shows_the_late_rank_in_its_steps() -> None:
    """Its cells of these steps have backprop's colour at full strength; other rows are fainter."""
    drawing = figures_critical_path.by_step(walk_path().cells, LIGHT)
    heat, *legend = drawing.figure.data
    names = [entry.name for entry in legend]
    row = list(drawing.figure.layout.yaxis.ticktext).index("rank 2 ")
    codes = heat.z[row][20:40]
    assert set(codes) == {names.index("backprop") * len(figures_critical_path.COLOUR_STRENGTHS)}
    assert heat.customdata[row][25] == write_cell_values(2, 25)
    assert drawing.summary.startswith("Rank 2 holds")
    assert sum(line["time on the path (ms)"] for line in drawing.rows) == pytest.approx(
        sum(walk_path().cells["ns"]) / 1e6
    )


def test_many_ranks_share_a_row() -> None:
    """Those that carry least are one row, whose cells still lead to a rank of theirs."""
    count = figures_critical_path.MOST_ROWS + 6
    rows = [(0, 1, rank, "forward", 1000 - rank) for rank in range(count)]
    cells = pl.DataFrame(rows, schema=walk_path().cells.schema, orient="row")
    drawn = figures_critical_path.by_step(cells, DARK).figure
    labels = drawn.layout.yaxis.ticktext
    assert len(labels) == figures_critical_path.MOST_ROWS + 1
    assert labels[-1] == "other ranks "
    assert drawn.data[0].customdata[-1][0] == write_cell_values(figures_critical_path.MOST_ROWS, 0)


@pytest.mark.parametrize(
    ("by", "first"), [("rank", "Rank 2 has"), ("category", ""), ("host", "Host0 has")]
)
def test_shares_add_up_to_the_path(by: str, first: str) -> None:
    """However it is divided, the table sums to the whole, and the largest group is told."""
    hosts = dict.fromkeys(range(4), "host0")
    drawing = figures_critical_path.composition(walk_path().shares, hosts, by, LIGHT)
    assert sum(row["% of the path"] for row in drawing.rows) == pytest.approx(100, abs=0.1)
    assert drawing.summary.startswith(first)


def test_slack_names_the_rank_without_any() -> None:
    """In red, on top; the sentence says how often."""
    table = walk_path().slack.with_columns(
        critical_steps=pl.when(pl.col("rank") == 2).then(0.9).otherwise(0.1),
        slack_ns=pl.when(pl.col("rank") == 2).then(0).otherwise("slack_ns"),
    )
    drawing = figures_critical_path.slack(table, LIGHT)
    dots = drawing.figure.data[1]
    assert dots.y[0] == "rank 2 "
    assert [colour == LIGHT.loss_colour for colour in dots.marker.color] == [
        True,
        False,
        False,
        False,
    ]
    assert drawing.summary.startswith("Rank 2 has no slack in 90 % of steps; rank")


def test_what_there_is_not_is_said() -> None:
    """Without steps there is no path, without collectives no slack."""
    for drawing in (
        figures_critical_path.by_step(NONE, LIGHT),
        figures_critical_path.segments(NONE, LIGHT),
    ):
        assert drawing.summary.startswith("No steps recorded")
    assert figures_critical_path.composition(NONE, {}, "rank", LIGHT).summary.startswith(
        "No steps recorded"
    )
    assert figures_critical_path.slack(NONE, LIGHT).summary.startswith("No full collectives")
    assert figures_critical_path.slack(alone().analysis_table("slack"), LIGHT).summary.startswith(
        "A single rank"
    )


def test_a_segment_leads_to_its_span() -> None:
    """From its bar as from its row of the table: the rank pinned, the piece in view."""
    store = slow_rank()
    row = store.analysis_table("critical_longest").row(3, named=True)
    for link in (page._link_to_bar(store, {"customdata": 3}), page._link_to_segment(store, 3)):
        view = view_of(link)
        assert view.pinned_ranks == (row["rank"],)
        assert view.start_ns is not None
        assert view.end_ns is not None
        origin = store.run_window.start_ns
        assert view.start_ns <= row["start_ns"] - origin
        assert row["end_ns"] - origin <= view.end_ns
    assert page._link_to_segment(store, 10**9) is None


def test_cells_and_groups_lead_to_their_ranks() -> None:
    store = slow_rank()
    cell = view_of(page._link_to_cell(store, {"customdata": [2, 25, "", ""]}))
    assert (cell.pinned_ranks, cell.marked_steps) == ((2,), (25, 25))
    group = view_of(page._link_to_group(store, {"customdata": ["rank", "rank 2", "backprop"]}))
    assert group.pinned_ranks == (2,)
    rare = view_of(page._link_to_group(store, {"customdata": ["rank", "rank 1", "outside"]}))
    assert rare.pinned_ranks == (1,)
    assert page._link_to_cell(store, {}) is None
    assert page._link_to_rank(store, {"customdata": [99, ""]}) is None
