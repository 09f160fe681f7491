"""Where a straggler's delay is: in which layers, or between which spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting.categories import CATEGORIES, NOTHING, TRANSFER, UNINSTRUMENTED
from tracelens.caching import cached_property
from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.sampled_code import Culprit
    from tracelens.arrays import Floats, Ints

# share of a delay: the section with the most is not named if it has less [policy]
MIN_SHARE_OF_SLOWEST_SECTION: Final = 0.5
MAX_SECTIONS_NAMED: Final = 3  # sections: no more are named as where the delay is [policy]
# share of a delay: sections that have less together are not named [policy]
MIN_SHARE_OF_DELAY_IN_SECTIONS: Final = 0.75
# share of a phase's usual time: sections that take more are not named [policy]
MAX_SHARE_OF_USUAL_TIME_IN_SECTIONS: Final = 0.5
# share of a delay: all sections are slower alike if no more would have to be moved [policy]
MAX_SHARE_ELSEWHERE_IF_ALIKE: Final = 0.25
# share of a delay: if less is between the same neighbours, they are not named [policy]
MIN_SHARE_OF_DELAY_IN_GAP: Final = 0.5
MAX_SECTIONS_LISTED: Final = 16  # sections: the evidence of a finding lists no more [policy]

_IS_COMMUNICATION: Final = np.isin(CATEGORIES, ("wait", "ps_queue", "transfer"))


@dataclass(frozen=True, eq=False)
class Sections:
    """Spans within a phase, such as layers: a row a `name`, the one with most extra time first.

    `extra_ns` is the time beyond the peers, `usual_ns` the peers' time, both per step and late rank.
    """

    table: pl.DataFrame

    @property
    def slowest_name(self) -> str | None:
        """Name of the section that holds most of the delay; None if none holds enough of it."""
        name, share = self.table["name"][0], self._delay_shares[0]
        return str(name) if name is not None and share >= MIN_SHARE_OF_SLOWEST_SECTION else None

    @property
    def main_names_and_share(self) -> tuple[tuple[str, ...], float]:
        """The few sections that hold nearly all of the delay, not of the usual time; their share."""
        max_usual_ns = MAX_SHARE_OF_USUAL_TIME_IN_SECTIONS * float(self.table["usual_ns"].sum())
        for count in range(1, MAX_SECTIONS_NAMED + 1):
            top_sections = self.table.head(count)
            share = float(self._delay_shares[:count].sum())
            usual_ns = float(top_sections["usual_ns"].sum())
            if share >= MIN_SHARE_OF_DELAY_IN_SECTIONS and usual_ns <= max_usual_ns:
                names = top_sections["name"].drop_nulls().cast(pl.String).to_list()
                return (tuple(names), min(share, 1.0)) if len(names) == count else ((), 0.0)
        return (), 0.0

    @property
    def are_equally_slow(self) -> bool:
        """Whether all sections are slower by about the same share, as on a slow device."""
        usual_shares = self.table["usual_ns"] / self.table["usual_ns"].sum()
        differing_share = float((self._delay_shares - usual_shares).abs().sum()) / 2
        return differing_share <= MAX_SHARE_ELSEWHERE_IF_ALIKE

    @cached_property
    def _delay_shares(self) -> pl.Series:
        return self.table["extra_ns"] / self.table["extra_ns"].sum()

    def list_evidence(self) -> list[dict[str, Any]]:
        """Return the sections with the greatest extra time, for a finding."""
        if len(self.table) <= 1:
            return []
        columns = (
            pl.col("name").cast(pl.String),
            self._delay_shares.alias("share"),
            pl.col("extra_ns", "usual_ns").round().cast(pl.Int64),
        )
        return self.table.select(columns).head(MAX_SECTIONS_LISTED).to_dicts()


def compare_sections(
    phases: Phases, ranks: tuple[int, ...], peers: tuple[int, ...], phase: str, step_numbers: Ints
) -> Sections | None:
    """Compare late ranks' spans in a phase and some steps with their peers'; None if not longer.

    `ranks` are late, `peers` are not; `step_numbers` are those of the late steps.
    """
    spans = phases.pieces.sum_ns_by_span_name(phase, step_numbers).filter(
        pl.col("rank").is_in([*ranks, *peers])
    )
    is_late = pl.col("rank").is_in(list(ranks))
    late_count, rank_count = spans.select(
        late=pl.col("rank").filter(is_late).n_unique(), all=pl.col("rank").n_unique()
    ).row(0)
    if not late_count or late_count == rank_count:
        return None
    usual_ns = pl.col("ns").filter(~is_late).sum() / (rank_count - late_count) / len(step_numbers)
    late_ns = pl.col("ns").filter(is_late).sum() / late_count / len(step_numbers)
    sections = spans.group_by("name").agg(extra_ns=late_ns - usual_ns, usual_ns=usual_ns)
    if sections["extra_ns"].sum() <= 0:
        return None
    name = pl.col("name").cast(pl.String)
    return Sections(sections.sort("extra_ns", name, descending=[True, False]))


@dataclass(frozen=True)
class Gap:
    """Time without a span, between two categories, and the share of the delay that it holds."""

    before: str
    after: str
    share: float

    @property
    def location_text(self) -> str:
        """Where it is, in words."""
        category_before, category_after = (
            "communication" if name == "transfer" else fmt.phase(name)
            for name in (self.before, self.after)
        )
        if category_before == category_after == "communication":
            return "between calls of communication"
        return f"between {category_before} and {category_after}"


def describe_gap(gap: Gap | None, culprit: Culprit | None) -> str:
    """Report that no span covers a delay, between what it is, and how to learn more."""
    where = f", {gap.location_text}" if gap and gap.share >= MIN_SHARE_OF_DELAY_IN_GAP else ""
    how = ": wrap it in a span (tl.span), or record with --sample to see the code"
    return f"No span covers it{where}{'' if culprit else how}."


def find_gap(
    phases: Phases, ranks: tuple[int, ...], peers: tuple[int, ...], step_numbers: Ints
) -> Gap | None:
    """Find the gap between spans in which ranks spend most beyond their peers; None if nowhere.

    Without peers it is where most of that time lies. `step_numbers` are those of the late steps.
    """
    gaps_of_ranks = list(_measure_gaps(phases, step_numbers))
    late_ns, usual_ns = (  # of the mean rank, [category before, after]
        np.mean([ns for rank, ns in gaps_of_ranks if rank in group] or [np.zeros(())], axis=0)
        for group in (ranks, peers)
    )
    extra_ns = np.asarray(late_ns - usual_ns)
    if not extra_ns.ndim or extra_ns.max() <= 0:
        return None
    before, after = np.unravel_index(extra_ns.argmax(), extra_ns.shape)
    share = float(extra_ns.max() / np.maximum(extra_ns, 0).sum())
    return Gap(before=CATEGORIES[before], after=CATEGORIES[after], share=share)


def _measure_gaps(phases: Phases, step_numbers: Ints) -> Iterator[tuple[int, Floats]]:
    """Yield each rank, and its time without a span in some steps, ns, [category before, after].

    Only time between two spans counts. A transfer right after other work is the wait for what was in
    flight: what comes after this wait counts as after that work.
    """
    count = len(CATEGORIES)
    is_window_chosen = np.isin(phases.pieces.step_windows["step"].to_numpy(), step_numbers)
    for rank, pieces in zip(phases.pieces.ranks, phases.pieces, strict=True):
        category = np.where(
            _IS_COMMUNICATION[pieces.category_codes], TRANSFER, pieces.category_codes
        )
        # Neighbouring pieces of one category are one stretch.
        first_pieces = np.flatnonzero(np.diff(category, prepend=NOTHING))  # of each stretch
        begins_ns, category = pieces.bounds_ns[first_pieces], category[first_pieces]
        gaps = np.flatnonzero(category == UNINSTRUMENTED)  # indices of stretches
        gaps = gaps[(gaps > 0) & (gaps < len(first_pieces) - 1)]
        windows = pieces.window_indices[first_pieces[gaps]] + pieces.first_window
        gaps = gaps[is_window_chosen[windows]]
        category_before, category_two_before = category[gaps - 1], category[np.maximum(gaps - 2, 0)]
        is_wait = (category_before == TRANSFER) & (category_two_before != UNINSTRUMENTED)
        category_before = np.where(is_wait, category_two_before, category_before).astype(np.intp)
        cells = category_before * count + category[gaps + 1]
        gaps_ns = np.bincount(cells, begins_ns[gaps + 1] - begins_ns[gaps], minlength=count**2)
        yield rank, np.asarray(gaps_ns.reshape(count, count), np.float64)
