"""What a process of a job did: its complete steps and the pauses between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.life.pauses import pause_by_name
from tracelens.align.steps import find_outermost
from tracelens.distil.outline import list_outlines
from tracelens.model.columns import FOREVER
from tracelens.model.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.arrays import Flags, Int32s, Ints
    from tracelens.model.columns import Columns
    from tracelens.model.trace import Trace

# Uses of time that are no steps, and the kind of their spans; of two at a time the first one counts.
_KIND_BY_PAUSE: Final = {
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "data_preparation": "data",
}
PAUSES: Final = tuple(_KIND_BY_PAUSE)


@dataclass(frozen=True, eq=False)
class Course:
    """What a process did: complete steps in order of time, and pauses.

    Arrays are [step]. `pauses` holds for each use of `PAUSES` the time of its spans and of those of the
    uses before it, merged. All is of the training thread, and on the common clock. `begun_step` is the
    step that it had begun at the end and did not complete, `begun_ns` when; null without one, or where
    no number, or no span of a step, tells.
    `has_recorded_steps` is False if nothing marked them among the events: then they are those of
    alignment, which an earlier attempt does not have.
    """

    step: Int32s
    begin_ns: Ints
    end_ns: Ints
    pauses: Mapping[str, Intervals]
    is_in_step: bool  # at the end, in a step that it did not complete
    begun_step: int | None = None
    begun_ns: int | None = None
    has_recorded_steps: bool = True

    @classmethod
    def read(cls, trace: Trace, process: int | None) -> Course:
        """Read the spans of a process; where none is a step, steps are those of alignment."""
        if process is None:
            return cls.empty()
        names = ("start_ns", "end_ns", "type", "kind", "name", "thread", "step", "status")
        columns = trace.source.read_columns(process, names)
        start_ns, end_ns = columns.number_column("start_ns"), columns.number_column("end_ns")
        is_span = columns.is_span & (end_ns != FOREVER)
        thread = list_outlines(trace)[process].training_thread
        is_on_thread = np.ones(len(start_ns), np.bool_)
        if thread is not None:
            is_on_thread = columns.number_column("thread") == thread
        is_span &= is_on_thread
        pauses = _find_pauses(columns, is_span)
        has_failed = columns.word_column("status").is_in(["exception"])
        is_step = columns.word_column("kind").is_in(["step"])
        is_incomplete = is_step & columns.is_span & (has_failed | (end_ns == FOREVER))
        steps = np.flatnonzero(is_span & is_step & ~has_failed)
        steps = steps[np.lexsort((-end_ns[steps], start_ns[steps]))]
        steps = steps[find_outermost(start_ns[steps], end_ns[steps])] if len(steps) else steps
        last_begin_ns = start_ns[steps].max(initial=0)
        incomplete_begins_ns = start_ns[is_incomplete & (start_ns > last_begin_ns)]
        is_in_step = bool(len(incomplete_begins_ns))
        if len(steps) or is_in_step:
            numbers = columns.number_column("step")
            step = numbers[steps]
            begun_step = int(numbers[is_on_thread].max(initial=-1))
            is_begun = begun_step > (step[-1] if len(step) else -1)
            return cls(
                step,
                start_ns[steps],
                end_ns[steps],
                pauses,
                is_in_step,
                begun_step if is_begun else None,
                int(incomplete_begins_ns.min()) if is_in_step else None,
            )
        table = trace.steps.filter(pl.col("process") == process).sort("start_ns")
        step, start_ns, end_ns = (table[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
        return cls(
            step, start_ns, end_ns, pauses, is_in_step=True, has_recorded_steps=not len(is_span)
        )

    @classmethod
    def empty(cls) -> Course:
        """Return the course of a process that recorded nothing."""
        nothing = np.zeros(0, np.int64)
        pauses = {pause_kind: Intervals.merge(nothing, nothing) for pause_kind in PAUSES}
        return cls(nothing.astype(np.int32), nothing, nothing, pauses, is_in_step=False)

    def measure_pauses(
        self, begin_ns: Ints, end_ns: Ints, pause_kinds: Sequence[str]
    ) -> dict[str, Ints]:
        """Return how long pauses of each kind take of windows, ns, [window]; none is counted twice.

        Args:
            begin_ns: Of each window, [window].
            end_ns: Of each window, [window].
            pause_kinds: The first ones of `PAUSES`. Time in pauses of two kinds is the first's.
        """
        ns_by_kind: dict[str, Ints] = {}
        earlier_kinds_ns = np.zeros(len(begin_ns), np.int64)
        for pause_kind in pause_kinds:
            intervals = self.pauses[pause_kind]  # merged with those of all earlier kinds
            within_ns = intervals.covered_ns_before(end_ns) - intervals.covered_ns_before(begin_ns)
            ns_by_kind[pause_kind] = within_ns - earlier_kinds_ns
            earlier_kinds_ns = within_ns
        return ns_by_kind


def _find_pauses(columns: Columns, is_span: Flags) -> dict[str, Intervals]:
    """Return the pauses of a process by kind, each merged with those of the kinds before it.

    `is_span` flags the spans that count, [row].
    """
    start_ns, end_ns = columns.number_column("start_ns"), columns.number_column("end_ns")
    kind, name = columns.word_column("kind"), columns.word_column("name")
    is_of_user = kind.is_in(["user"])
    is_pause, pauses = np.zeros(len(start_ns), np.bool_), {}
    for pause_kind, span_kind in _KIND_BY_PAUSE.items():
        pause_names = [word for word in name.vocabulary if pause_by_name(word) == pause_kind]
        is_pause |= is_span & (kind.is_in([span_kind]) | (is_of_user & name.is_in(pause_names)))
        pauses[pause_kind] = Intervals.merge(start_ns[is_pause], end_ns[is_pause])
    return pauses
