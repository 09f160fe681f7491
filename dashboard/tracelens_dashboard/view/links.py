"""Where a finding leads: to the rows and the window in which it can be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

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
LONG_RUN_STEPS: Final = 20  # in runs of more steps the first ones are left out:
STARTING_STEPS: Final = 2  # so many, which load and compile
MARGIN_SHARE: Final = 0.05  # of the window, on either side: where it begins and ends is seen


def to_timeline(store: Store, finding: Finding) -> str:
    """Link to the finding's ranks, pinned, in its steps (first, last)."""
    window = store.window_of_steps(*finding.steps) if finding.steps else None
    return _link(store, TIMELINE, _view_of(store, finding), window)


def to_worst_step(store: Store, finding: Finding) -> str | None:
    """Link to the step in which the finding's ranks, its shard, or its category were worst."""
    # The category of its kind counts only if the finding names no rank and no shard.
    category = KINDS[finding.kind].worst_step_category
    if category and not finding.ranks and not finding.shards:
        return to_step_with_most(store, category, finding.steps)
    find_step = _find_busiest_step_of_shard if finding.shards else _find_worst_step_of_ranks
    step, pinned_ranks = find_step(store, finding), _select_ranks(store, finding)
    return None if step is None else to_step(store, step, pinned_ranks, finding.steps)


def _find_worst_step_of_ranks(store: Store, finding: Finding) -> int | None:
    """Return the finding's step with the largest residual of any of its ranks, if it has any."""
    # A residual is a rank's compute time in a step less that of its peers, [rank, step] in ns.
    residuals = store.residuals
    rank_indexes = [store.ranks.index(rank) for rank in _select_ranks(store, finding)]
    step_indexes = [i for i, step in enumerate(residuals.steps) if _has_step(finding, step)]
    if not rank_indexes or not step_indexes:
        return None
    residual_ns = residuals.residual_ns[np.ix_(rank_indexes, step_indexes)]
    step_max_ns = np.nan_to_num(residual_ns, nan=-np.inf).max(axis=0)
    return residuals.steps[step_indexes[int(step_max_ns.argmax())]]


def _find_busiest_step_of_shard(store: Store, finding: Finding) -> int | None:
    """Return the first step in which the finding's first shard was busiest; None without any."""
    lanes = store.scene.step_lanes  # an item per shard and step, whose code grows with its load
    for index, lane in enumerate(lanes.owners):
        if lane.role == "ps" and lane.rank == finding.shards[0]:
            items = slice(int(lanes.item_offsets[index]), int(lanes.item_offsets[index + 1]))
            loads, steps = lanes.palette_codes[items].tolist(), lanes.step_numbers[items].tolist()
            items_of_steps = zip(loads, steps, strict=True)
            candidates = [
                (load, -step) for load, step in items_of_steps if _has_step(finding, step)
            ]
            return -max(candidates)[1] if candidates else None
    return None


def _has_step(finding: Finding, step: int) -> bool:
    return finding.steps is None or finding.steps[0] <= step <= finding.steps[1]


def to_step_of_mark(store: Store, point: dict[str, Any]) -> str:
    """Link to the step at which a mark is clicked."""
    return to_step(store, int(point["x"]))


def to_step(
    store: Store,
    step: int,
    ranks: tuple[int, ...] = (),
    marked_steps: tuple[int, int] | None = None,
) -> str:
    """Link to one step, with some ranks pinned; `marked_steps` are the first and the last one."""
    view = ViewState(pinned_ranks=ranks[:MOST_PINS], marked_steps=marked_steps or (step, step))
    return _link(store, TIMELINE, view, store.window_of_steps(step, step))


def to_step_with_most(
    store: Store, category: str, steps: tuple[int, int] | None = None
) -> str | None:
    """Link to the step with most time of a category, and to the rank with most of it."""
    # Only `steps`, first to last, count if they are given. None if no rank has any such time.
    time_ns = np.nan_to_num(store.category_times.sum_time_ns([category]))  # [rank, step]
    first, last = steps or (-1, np.inf)
    step_numbers = np.array(store.category_times.steps)
    step_indexes = np.flatnonzero((step_numbers >= first) & (step_numbers <= last))
    if steps is None and len(step_indexes) > LONG_RUN_STEPS:
        step_indexes = step_indexes[STARTING_STEPS:]
    if not time_ns[:, step_indexes].any():
        return None
    step_index = step_indexes[int(time_ns[:, step_indexes].sum(axis=0).argmax())]
    # Most waiting is caused by the straggler of the step, not by the rank that waits longest.
    cause_ns = np.nan_to_num(store.residuals.residual_ns) if category == "wait" else time_ns
    rank = store.ranks[int(cause_ns[:, step_index].argmax())]
    return to_step(store, int(step_numbers[step_index]), (rank,), steps)


def to_page(store: Store, path: str, finding: Finding) -> str:
    """Link to the page that a finding belongs to, for its ranks and steps."""
    return _link(store, path, _view_of(store, finding))


def _view_of(store: Store, finding: Finding) -> ViewState:
    return ViewState(pinned_ranks=_select_ranks(store, finding), marked_steps=finding.steps)


def to_moment(store: Store, window: Window, ranks: tuple[int, ...] = ()) -> str:
    """Link to a stretch of time, with some time around it, and some ranks pinned."""
    return _link(store, TIMELINE, ViewState(pinned_ranks=ranks[:MOST_PINS]), _widen(window))


def to_found(store: Store, window: Window, scene_row: int, searched_name: str) -> str:
    """Link to a found span (its extent is `window`), selected, its process (at `scene_row`) opened."""
    key = next(
        key for key, process_row in store.scene_row_by_key.items() if process_row == scene_row
    )
    selected = (scene_row, window.start_ns - store.run_window.start_ns)
    view = ViewState(opened_row_keys=(key,), selected_point=selected, searched_name=searched_name)
    return _link(store, TIMELINE, view, _widen(window))


def to_call(store: Store, window: Window) -> str:
    """Link to the collective in a window, selected, its last rank pinned; else to the window."""
    call = store.find_call_around(window)
    if call is None:
        return to_moment(store, window)
    call_window = Window(call.first_arrival_ns, call.last_exit_ns)
    last_rank, row = call.last_arriving_rank, store.scene_row_of_rank(call.last_arriving_rank)
    # A row can be in several calls at once: this one is selected just before its end.
    selected_ns = max(
        call.left_ns_by_rank.get(last_rank, call.last_arrival_ns) - 1, call.last_arrival_ns
    )
    selected = None if row is None else (row, selected_ns - store.run_window.start_ns)
    view = ViewState(pinned_ranks=(last_rank,), selected_point=selected)
    return _link(store, TIMELINE, view, _widen(call_window))


def to_ranks(store: Store, ranks: tuple[int, ...]) -> str:
    """Link to the whole run with some ranks pinned."""
    return _link(store, TIMELINE, ViewState(pinned_ranks=ranks[:MOST_PINS]))


def along_path(href: str) -> str:
    """Let the timeline that a link leads to draw the critical path, too."""
    return f"{href}{'&' if '?' in href else '?'}path=1"


def to_comparison(run_key: str | None, *baseline_ids: str) -> str:
    """Link to the comparison of a run with one baseline, or with several."""
    return ViewState(run_key=run_key, baseline_ids=baseline_ids[:MOST_BASELINES]).make_link(COMPARE)


def to_replay(store: Store, edits: tuple[str, ...]) -> str:
    """Link to a replay with some edits."""
    return ViewState(run_key=store.run_key, replay_edits=edits).make_link(WHAT_IF)


def to_steps(store: Store, path: str, finding: Finding) -> str | None:
    """Link to a page for a finding's steps alone; None where these are all that is shown."""
    run_selection, shown_steps = selection.read(store.run_key), store.step_windows["step"]
    if run_selection is None or finding.steps is None or not shown_steps.len():
        return None
    first, last = finding.steps
    if first <= shown_steps[0] and shown_steps[-1] <= last:
        return None
    choice = replace(run_selection.choice, step_ranges=(finding.steps,))  # ranges of steps
    return ViewState(run_key=run_selection._replace(choice=choice).address_key).make_link(path)


def fix_of(store: Store, finding: Finding) -> tuple[str, ...]:
    """Return the edit that replays the fix of a finding; empty where that would save nothing."""
    findings = store.report.findings
    if finding.category != "fault" or not finding.saving or finding not in findings:
        return ()
    return (f"fix:{findings.index(finding) + 1}",)


def to_shard(store: Store, finding: Finding) -> str:
    """Link to the shard that a finding names."""
    return _link(store, SHARDS, ViewState(shard=finding.shards[0], marked_steps=finding.steps))


def to_stacks(store: Store, finding: Finding | None = None) -> str:
    """Link to the sampled code of a finding's rank in its steps; of the whole run without one."""
    return _link(store, STACKS, _view_of(store, finding) if finding else ViewState())


def _widen(window: Window) -> Window:
    return window.widen(2 * window.width_ns)


def _select_ranks(store: Store, finding: Finding) -> tuple[int, ...]:
    """Return the ranks to pin: the finding's, else those of its hosts, up to `MOST_PINS`."""
    ranks = set(finding.ranks) & set(store.ranks)
    if not ranks and not finding.shards:
        ranks = {rank for rank, host in store.host_by_rank.items() if host in finding.hosts}
    return tuple(sorted(ranks))[:MOST_PINS]


def _link(store: Store, path: str, view: ViewState, window: Window | None = None) -> str:
    """Return the address of a page for a view, and an absolute window with a margin around it."""
    if window is not None:
        wider = store.window_since_start(
            window.widen(int(window.width_ns * MARGIN_SHARE)).clamp(store.run_window)
        )
        view = replace(view, start_ns=wider.start_ns, end_ns=wider.end_ns)
    return replace(view, run_key=store.run_key).make_link(path)


def find_slow_links(store: Store) -> frozenset[tuple[int, int]]:
    """Return the links between ranks that findings name, as (sender, receiver)."""
    return frozenset(
        (sender, receiver)
        for finding in store.report.findings
        for sender, receiver in finding.evidence.get("slow_links", ())
    )
