"""Where a finding leads: to the rows and the window in which it can be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.lod.viewport import Window
from tracelens.model.finding_kinds import KINDS
from tracelens_dashboard.runs import selection
from tracelens_dashboard.view.finding_pages import SHARDS
from tracelens_dashboard.view.state import MOST_BASELINES, MOST_PINS, ViewState

if TYPE_CHECKING:
    from tracelens.model.findings import Finding
    from tracelens_dashboard.runs.store import Store

OVERVIEW: Final = "/"
TIMELINE: Final = "/timeline"
COMPARE: Final = "/compare"
STACKS: Final = "/stacks"
WHAT_IF: Final = "/what-if"
SETTLED: Final = 20  # in runs of more steps than these,
STARTING: Final = 2  # so many first ones, which load and compile, are left out
MARGIN: Final = 0.05  # of the window, on either side: where it begins and ends is seen


def to_timeline(store: Store, finding: Finding) -> str:
    """Show the finding's ranks, pinned, in its steps."""
    window = store.window_of(*finding.steps) if finding.steps else None
    return _frame(store, _view_of(store, finding), window).link(TIMELINE)


def to_worst_step(store: Store, finding: Finding) -> str | None:
    """Show the one step in which the finding's ranks, or its shard, were worst; None without one.

    Of a finding that names neither, the step with most time of its category.
    """
    category = KINDS[finding.kind].worst_of
    if category and not finding.ranks and not finding.shards:
        return to_most(store, category, finding.steps)
    step = _worst_of_shard(store, finding) if finding.shards else _worst_of_ranks(store, finding)
    ranks = _select_ranks(store, finding)
    return None if step is None else to_step(store, step, ranks, finding.steps)


def _worst_of_ranks(store: Store, finding: Finding) -> int | None:
    residuals = store.residuals
    rows = [store.ranks.index(rank) for rank in _select_ranks(store, finding)]
    columns = [index for index, step in enumerate(residuals.steps) if _has_step(finding, step)]
    if not rows or not columns:
        return None
    residual_ns = np.nan_to_num(residuals.residual_ns[np.ix_(rows, columns)], nan=-np.inf)
    return residuals.steps[columns[int(residual_ns.max(axis=0).argmax())]]


def _worst_of_shard(store: Store, finding: Finding) -> int | None:
    lanes = store.scene.steps
    for index, lane in enumerate(lanes.lanes):
        if lane.role == "ps" and lane.rank == finding.shards[0]:
            items = slice(int(lanes.offsets[index]), int(lanes.offsets[index + 1]))
            levels = zip(lanes.codes[items].tolist(), lanes.steps[items].tolist(), strict=True)
            inside = [(level, -step) for level, step in levels if _has_step(finding, step)]
            return -max(inside)[1] if inside else None
    return None


def _has_step(finding: Finding, step: int) -> bool:
    return finding.steps is None or finding.steps[0] <= step <= finding.steps[1]


def to_step(
    store: Store, step: int, ranks: tuple[int, ...] = (), steps: tuple[int, int] | None = None
) -> str:
    """Show one step, with some ranks pinned; `steps` are marked."""
    view = ViewState(pins=ranks[:MOST_PINS], steps=steps or (step, step))
    return _frame(store, view, store.window_of(step, step)).link(TIMELINE)


def to_most(store: Store, category: str, steps: tuple[int, int] | None = None) -> str | None:
    """Show the step with most time of a category, and the rank with most of it; None without any.

    Of waiting that is the straggler of the step, not a rank that waits for it.
    """
    time_ns = np.nan_to_num(store.times.time_in([category]))
    first, last = steps or (-1, np.inf)
    numbers = np.array(store.times.steps)
    columns = np.flatnonzero((numbers >= first) & (numbers <= last))
    if steps is None and len(columns) > SETTLED:
        columns = columns[STARTING:]
    if not time_ns[:, columns].any():
        return None
    column = columns[int(time_ns[:, columns].sum(axis=0).argmax())]
    cause_ns = np.nan_to_num(store.residuals.residual_ns) if category == "wait" else time_ns
    rank = store.ranks[int(cause_ns[:, column].argmax())]
    return to_step(store, int(numbers[column]), (rank,), steps)


def to_page(store: Store, path: str, finding: Finding) -> str:
    """Show the page that a finding belongs to, for its ranks and steps."""
    return _frame(store, _view_of(store, finding), None).link(path)


def _view_of(store: Store, finding: Finding) -> ViewState:
    return ViewState(pins=_select_ranks(store, finding), steps=finding.steps)


def to_span(store: Store, item: int, ranks: tuple[int, ...]) -> str:
    """Show one span of the timeline, with some time around it."""
    lanes = store.scene.lanes
    return to_moment(store, Window(int(lanes.starts[item]), int(lanes.ends[item])), ranks)


def to_moment(store: Store, window: Window, ranks: tuple[int, ...] = ()) -> str:
    """Show a stretch of time, with some time around it, and some ranks pinned."""
    return _frame(store, ViewState(pins=ranks[:MOST_PINS]), _widen(window)).link(TIMELINE)


def to_found(store: Store, window: Window, row: int, search: str) -> str:
    """Show a span that was found, selected, its process opened; `row` is that of the process."""
    key = next(key for key, known in store.groups.items() if known == row)
    selected = (row, window.start_ns - store.whole.start_ns)
    view = ViewState(opened=(key,), selected=selected, find=search)
    return _frame(store, view, _widen(window)).link(TIMELINE)


def to_call(store: Store, window: Window) -> str:
    """Show a collective, selected: the timeline says who entered it when; who came last is pinned.

    `window` is about its time; where there is no such call, that is shown.
    """
    call = store.call_around(window)
    if call is None:
        return to_moment(store, window)
    wider = _widen(Window(call.first_ns, call.over_ns))
    rank, row = call.last_rank, store.lane_of(call.last_rank)
    at_ns = max(call.left.get(rank, call.last_ns) - 1, call.last_ns)  # of several, it ends first
    selected = None if row is None else (row, at_ns - store.whole.start_ns)
    return _frame(store, ViewState(pins=(rank,), selected=selected), wider).link(TIMELINE)


def to_ranks(store: Store, ranks: tuple[int, ...]) -> str:
    """Show the whole run with some ranks pinned."""
    return _frame(store, ViewState(pins=ranks[:MOST_PINS]), None).link(TIMELINE)


def along_path(href: str) -> str:
    """Let the timeline that a link leads to draw the critical path, too."""
    return f"{href}{'&' if '?' in href else '?'}path=1"


def to_comparison(run: str | None, *baselines: str) -> str:
    """Compare a run with one baseline, or with several."""
    return ViewState(run=run, compare=baselines[:MOST_BASELINES]).link(COMPARE)


def to_replay(store: Store, edits: tuple[str, ...]) -> str:
    """Show a replay with some edits."""
    return ViewState(run=store.run_id, edits=edits).link(WHAT_IF)


def to_steps(store: Store, path: str, finding: Finding) -> str | None:
    """Show a page for a finding's steps alone; None where these are all that is shown."""
    part, steps = selection.read(store.run_id), store.windows["step"]
    if part is None or finding.steps is None or not steps.len():
        return None
    first, last = finding.steps
    if first <= steps[0] and steps[-1] <= last:
        return None
    choice = replace(part.choice, steps=(finding.steps,))
    return ViewState(run=part._replace(choice=choice).key).link(path)


def fix_of(store: Store, finding: Finding) -> tuple[str, ...]:
    """Return the edit that replays the fix of a finding; empty where its saving is no fault's."""
    findings = store.report.findings
    if finding.category != "fault" or not finding.saving or finding not in findings:
        return ()
    return (f"fix:{findings.index(finding) + 1}",)


def to_shard(store: Store, finding: Finding) -> str:
    """Show the shard that a finding names."""
    view = ViewState(shard=finding.shards[0], steps=finding.steps)
    return _frame(store, view, None).link(SHARDS)


def to_stacks(store: Store, finding: Finding | None = None) -> str:
    """Show the code that ran, of a finding its rank's in its steps; null = in the whole run."""
    view = _view_of(store, finding) if finding else ViewState()
    return _frame(store, view, None).link(STACKS)


def _widen(window: Window) -> Window:
    margin_ns = 2 * window.width_ns
    return Window(window.start_ns - margin_ns, window.end_ns + margin_ns)


def _select_ranks(store: Store, finding: Finding) -> tuple[int, ...]:
    ranks = set(finding.ranks) & set(store.ranks)
    if not ranks and not finding.shards:
        ranks = {rank for rank, host in store.hosts.items() if host in finding.hosts}
    return tuple(sorted(ranks))[:MOST_PINS]


def _frame(store: Store, view: ViewState, window: Window | None) -> ViewState:
    """Let a view show a window with a margin on either side, of the run that is served."""
    view = replace(view, run=store.run_id)
    if window is None:
        return view
    margin_ns, origin = int(window.width_ns * MARGIN), store.whole.start_ns
    wider = Window(window.start_ns - margin_ns, window.end_ns + margin_ns).clamp(store.whole)
    return replace(view, start_ns=wider.start_ns - origin, end_ns=wider.end_ns - origin)


def slow_links(store: Store) -> frozenset[tuple[int, int]]:
    """Return the links that findings name, as (sender, receiver)."""
    return frozenset(
        (sender, receiver)
        for finding in store.report.findings
        for sender, receiver in finding.evidence.get("slow_links", ())
    )
