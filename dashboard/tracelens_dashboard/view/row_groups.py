"""Ranks gathered by what they share: the host that they are on, or the stage of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.lod.viewport import RowGroup
from tracelens_dashboard import text

if TYPE_CHECKING:
    from collections.abc import Collection

    import polars as pl

    from tracelens_dashboard.runs.store import Store

GROUP_COLUMNS: Final = ("host", "stage")  # columns of the workers


def group_columns(workers: pl.DataFrame) -> list[str]:
    """Return the columns of `GROUP_COLUMNS` by which workers (one a row) form several groups."""
    return [column for column in GROUP_COLUMNS if workers[column].n_unique() > 1]


def ranks_by(workers: pl.DataFrame, column: str) -> list[tuple[str, list[int]]]:
    """Return (name, ranks) of each group of workers, one a row, by a column."""
    groups = workers.group_by(column, maintain_order=True).agg("rank")
    return [(text.clean_name(str(value)), ranks) for value, ranks in groups.iter_rows()]


def gather(store: Store, column: Any, opened_row_keys: Collection[str] = ()) -> list[RowGroup]:
    """Gather the rows of ranks by host or stage (`column`); empty where these are not several."""
    # `opened_row_keys` are of groups and processes; a group's is ``g`` and its lowest rank.
    workers = store.run.workers
    if column not in group_columns(workers):
        return []
    row_by_rank = {rank: row for row, rank in enumerate(store.ranks)}
    return [
        RowGroup(
            address_key=(key := f"g{min(ranks)}"),
            name=name if column == "host" else f"{column} {name}",
            lane_indices=tuple(row_by_rank[rank] for rank in ranks),
            # By its own key, or by that of any of its ranks.
            is_opened=not {key, *map(str, ranks)}.isdisjoint(opened_row_keys),
        )
        for name, ranks in ranks_by(workers, column)
    ]
