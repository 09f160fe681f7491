"""How long would steps be if something were different? A replay with edits, and one without."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import TraceLensError
from tracelens.model.inert import clean
from tracelens.simulator.algorithms import ALGORITHMS
from tracelens_dashboard import text
from tracelens_dashboard.components import fields, finding_card, heading
from tracelens_dashboard.components.chart import ChartCard, fit_rows
from tracelens_dashboard.figures import replayed_steps
from tracelens_dashboard.figures.drawing import Drawing, empty
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dash.development.base_component import Component

    from tracelens.replay.whatif import Answer, Replay
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.WHAT_IF
TITLE: Final = "What if"
EXPLANATION: Final = (
    "How long steps would be if something were different: the run is replayed with edits."
)
EDITS: Final = "what-if-edits"
ANSWER: Final = "what-if-answer"
STEP: Final = "what-if-step"
TRY: Final = "what-if-try"
CONTROL: Final = "edit"  # the key of a control's id, whose value says what it changes
RANKS, MORE, PHASE, FIX = "ranks", "more", "phase:", "fix:"
EVERY_EDIT: Final = "all"
AS_RECORDED: Final = "as recorded"
MOST_SPANS: Final = 2_000_000  # a replay of them takes some ten seconds to make
MOST_SPANS_UNASKED: Final = 200_000  # up to so many, all edits are tried without being asked for
FULL_PERCENT: Final = 100  # of a phase
LEAST_PHASE_SHARE: Final = 0.005  # of all time: a phase with less has no slider
MIN_CHANGE_SHARE: Final = 0.01  # of a step: with less it is as it was
LOWEST_POWER, HIGHEST_POWER = -2, 3  # of two, that sliders reach
NO_STEPS: Final = (
    "This trace has no steps on all its workers: there is nothing to replay. Hooks of frameworks "
    "mark steps by themselves; in a loop of your own, write “with tl.step(i): …”."
)
TOO_LARGE: Final = (
    "This run has {spans} spans, more than a page can replay while you wait. In a terminal: "
    "tracelens whatif {name} --what all"
)
CHOOSE: Final = "Choose above what would be different."
NO_EDITS: Final = "With an edit, a step is drawn here as it was, and as it would be."
ASK: Final = "{spans} spans: to try every single edit takes a while. Press “Try all”."


def _choose_step(_store: Store, _view: ViewState) -> Component:
    options = {"placeholder": "step: the usual one", "min": 0, "w": 170, "debounce": True}
    return fields.number_input(STEP, "step", **options)


def _try_all(store: Store, _view: ViewState) -> Component:
    """Return the button that tries all edits, where that is not done without being asked for."""
    style = {} if store.report.summary.spans > MOST_SPANS_UNASKED else {"display": "none"}
    return fields.button("Try all", TRY, size="compact-xs", fw=500, style=style)


def _draw_step(store: Store, theme: Theme, given_edits: Any, step: Any) -> Drawing:
    """Draw a step as it was and with the edits; without edits, or where that fails, why."""
    # `step` is the number that the user asked for, if any.
    edits = _read_edits(given_edits)
    if not edits:
        return empty(theme, NO_EDITS)
    try:
        replay = store.replay
        step_index = _find_step(replay, edits, step)
        before_and_after = replay.replay_step(step_index, *edits)
        (answer,) = replay.answer(*edits).answers
    except TraceLensError as error:
        return empty(theme, clean(str(error)))
    ranks = _select_ranks(answer, edits)
    return replayed_steps.steps(
        before_and_after, int(replay.graph.step_numbers[step_index]), ranks, theme
    )


def _draw_savings(store: Store, theme: Theme, clicks: Any) -> Drawing:
    """Draw what each edit alone would save; in a large run only after a click."""
    span_count = store.report.summary.spans
    if not clicks and span_count > MOST_SPANS_UNASKED:
        return empty(theme, ASK.format(spans=f"{span_count:,}"))
    try:
        return replayed_steps.savings(store.replay.answer(EVERY_EDIT), theme)
    except TraceLensError as error:
        return empty(theme, clean(str(error)))


def _link_to_edit(store: Store, point: dict[str, Any]) -> str | None:
    data = point.get("customdata")
    edits = state.read_edits(data[0] if isinstance(data, list) and data else None)
    return links.to_replay(store, edits) if edits else None


BOTH: Final = ChartCard(
    card_id="what-if-both",
    title="One step, before and after",
    explanation="What ranks do in a step: replayed as it was, and below with the edits. The step "
    "is over on all ranks at the dotted line.",
    draw=_draw_step,
    height_px=fit_rows(
        lambda store: 2 * min(len(store.ranks), replayed_steps.MOST_ROWS),
        frame_px=140,
        row_px=22,
        least_px=0,
    ),
    inputs=(Input(EDITS, "data"), Input(STEP, "value")),
    lay_out_choice=_choose_step,
)
EVERY: Final = ChartCard(
    card_id="what-if-every",
    title="What every single edit would save",
    explanation="The mean step's saving by each edit alone, with its 95 % interval; they do not "
    "add up.",
    draw=_draw_savings,
    height_px=360,
    inputs=(Input(TRY, "n_clicks"),),
    link_from_mark=_link_to_edit,
    lay_out_choice=_try_all,
)
CARDS: Final[tuple[ChartCard, ...]] = (BOTH, EVERY)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why this run cannot be replayed here."""
    title = heading.page_title(TITLE, EXPLANATION)
    span_count = store.report.summary.spans
    if store.step_windows.is_empty():
        return heading.page_in_words([title], NO_STEPS, identity="no-replay")
    if span_count > MOST_SPANS:
        refusal = TOO_LARGE.format(spans=f"{span_count:,}", name=text.clean_name(store.name))
        return heading.page_in_words([title], refusal, identity="no-replay")
    edits = view.replay_edits or _suggest_edits(store)
    controls = _lay_out_controls(store, edits)
    answer_box = html.Div(id=ANSWER, className="verdict", role="status")
    grid_columns = [dmc.GridCol(part, span=12) for part in (controls, answer_box)]
    grid_columns += [card.lay_out(store, view) for card in CARDS]
    grid = dmc.Grid(grid_columns, gutter="sm")
    return html.Div([dcc.Store(id=EDITS, data=list(edits)), title, grid], className="page")


def register(app: Dash) -> None:
    """Answer whenever an edit changes."""

    @app.callback(
        Output(EDITS, "data"),
        Input({CONTROL: ALL}, "value"),
        State(EDITS, "data"),
        prevent_initial_call=True,
    )
    def collect_edits(_values: Any, edits_before: Any) -> list[str]:
        """Return the edits that the controls state, as texts, if they are other ones than before."""
        edits = edits_of(_read_controls(ctx.inputs_list[0]))
        current.prevent_update_unless(edits != edits_before)
        return edits

    @app.callback(Output(ANSWER, "children"), Input(EDITS, "data"), current.RUN)
    def answer(edits: Any, run_key: Any) -> list[Component]:
        """Replay the run with the edits (texts), and return the answer."""
        return _answer_edits(current.store_of_run(run_key), _read_edits(edits))


def _read_controls(controls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of controls by their names; a browser may send any ids."""
    value_by_name = {}
    for control in controls:
        identity = control.get("id")
        name = identity.get(CONTROL) if isinstance(identity, dict) else None
        if isinstance(name, str):
            value_by_name[name] = control.get("value")
    return value_by_name


def edits_of(value_by_name: Mapping[str, Any]) -> list[str]:
    """Convert the values of the controls, by name, into edits as text.

    A phase's value is the remaining percentage of its time. The value of bandwidth, latency and message
    cost is a power of two: their factor or divisor. `MORE` is edits as text.
    """
    chosen_ranks = value_by_name.get(RANKS)
    rank_texts = chosen_ranks if isinstance(chosen_ranks, list) else []
    edits = [f"rank:{rank}=median" for rank in rank_texts if str(rank).isdecimal()]
    for name, percent in value_by_name.items():
        is_phase = name.startswith(PHASE) and isinstance(percent, (int, float))
        if is_phase and 0 <= percent < FULL_PERCENT:
            edits.append(f"{name}*{percent / FULL_PERCENT:g}" if percent else f"{name}=0")
    # A slider goes to the better: more bandwidth, or less latency and cost.
    for name, signs in (("bandwidth", "*/"), ("latency", "/*"), ("message_cost", "/*")):
        power = value_by_name.get(name)
        if isinstance(power, (int, float)) and power:
            edits.append(f"{name}{signs[power < 0]}{2 ** abs(power):g}")
    edits += [
        f"{name}={value_by_name[name]}"
        for name in ("overlap", "algorithm", "async")
        if isinstance(value_by_name.get(name), str) and value_by_name[name] != AS_RECORDED
    ]
    return [*edits, *state.read_edits(value_by_name.get(MORE))]


def _suggest_edits(store: Store) -> tuple[str, ...]:
    """Return the fix of the first fault that has one, as edits."""
    faults = (finding for finding in store.report.findings if finding.category == "fault")
    return next(filter(None, (links.fix_of(store, fault) for fault in faults)), ())


def _lay_out_controls(store: Store, edits: Sequence[str]) -> Component:
    """Return the controls; edits without a control, or from a link, are in the text."""
    rank_by_edit = {f"rank:{rank}=median": str(rank) for rank in store.ranks}
    ranks_field = dmc.MultiSelect(
        id={CONTROL: RANKS},
        data=list(rank_by_edit.values()),
        value=[rank_by_edit[edit] for edit in edits if edit in rank_by_edit],
        label="Ranks as fast as the others",
        searchable=True,
        clearable=True,
        limit=50,
        size="xs",
    )
    text_field = dmc.TextInput(
        id={CONTROL: MORE},
        value=f"{state.BETWEEN_EDITS} ".join(edit for edit in edits if edit not in rank_by_edit),
        label="More edits, as in the terminal (docs/whatif.md)",
        placeholder="buckets=100MB; ranks=64; placement=greedy",
        debounce=True,
        size="xs",
    )
    sliders = [_phase_slider(name) for name in _select_phases(store)]
    sliders += [
        _power_slider("bandwidth", "Bandwidth", sign=1),
        _power_slider("latency", "Latency", sign=-1),
    ]
    choice_fields = [
        _select("overlap", "Overlap with backprop", ("on", "off")),
        _select("algorithm", "Allreduce by", ALGORITHMS),
    ]
    if store.shard_count:
        sliders.append(_power_slider("message_cost", "Servers' cost a message", sign=-1))
        choice_fields.append(_select("async", "Asynchronous updates", ("on",)))
    cells = [dmc.GridCol(field, span={"base": 12, "md": 6}) for field in (ranks_field, text_field)]
    cells += [
        dmc.GridCol(control, span={"base": 12, "xs": 6, "md": 3})
        for control in sliders + choice_fields
    ]
    return dmc.Card(dmc.Grid(cells, gutter="md"), className="card")


def _select_phases(store: Store) -> list[str]:
    """Return the phases of ranks' own work that take enough time for a slider."""
    total_ns = float(np.nansum(store.category_times.sum_time_ns(store.category_times.categories)))
    least_ns = LEAST_PHASE_SHARE * max(total_ns, 1.0)
    time_by_phase = {
        phase: np.nansum(store.category_times.sum_time_ns([phase])) for phase in OWN_CATEGORIES
    }
    return [phase for phase, ns in time_by_phase.items() if float(ns) > least_ns]


def _phase_slider(phase: str) -> Component:
    """Return the slider for the percentage of a phase's time that is left."""
    label = name_of(phase)
    marks = [{"value": value, "label": f"{value} %"} for value in (0, FULL_PERCENT)]
    thumb_label = f"{label}, percent of its time"
    title = f"{label[:1].upper()}{label[1:]}"
    limits = {"value": FULL_PERCENT, "min": 0, "max": FULL_PERCENT, "step": 5}
    return _slider(PHASE + phase, title, marks=marks, thumbLabel=thumb_label, **limits)


def _power_slider(name: str, title: str, *, sign: int) -> Component:
    """Return a slider of powers of two that is better to the right; `sign` -1: less is better."""
    marks = [
        {"value": power, "label": f"{2.0 ** (sign * power):g} \N{MULTIPLICATION SIGN}"}
        for power in (LOWEST_POWER, 0, HIGHEST_POWER)
    ]
    thumb_label = f"{title}, power of two"
    limits = {"value": 0, "min": LOWEST_POWER, "max": HIGHEST_POWER, "step": 1}
    return _slider(name, title, marks=marks, thumbLabel=thumb_label, label=None, **limits)


def _slider(name: str, title: str, **options: Any) -> Component:
    identity, margins = {CONTROL: name}, {"mx": "md", "mb": "md"}
    slider = dmc.Slider(id=identity, updatemode="mouseup", size="sm", **margins, **options)
    return html.Div([html.Span(title, className="fact-name"), slider])


def _select(name: str, label: str, values: Sequence[str]) -> Component:
    return dmc.Select(
        id={CONTROL: name},
        data=[AS_RECORDED, *values],
        value=AS_RECORDED,
        label=label,
        allowDeselect=False,
        size="xs",
    )


def _answer_edits(store: Store, edits: tuple[str, ...]) -> list[Component]:
    """Describe the steps with the edits, how far to trust that, and the command for a terminal."""
    if not edits:
        return [html.P(CHOOSE, className="summary")]
    try:
        whatif = store.replay.answer(*edits)
    except TraceLensError as error:
        return [html.P(clean(str(error)), className="summary", id="what-if-refused")]
    (answer,) = whatif.answers
    options = " ".join(f"--what '{edit}'" for edit in edits)
    lines = [*_name_fixes(store, edits), whatif.trust, *answer.remarks]
    return [
        dmc.Title(text.tie_units(describe_answer(answer)), order=2, id="verdict"),
        *(html.P(line, className="summary") for line in lines),
        html.Code(f"tracelens whatif {text.clean_name(store.name)} {options}", className="summary"),
    ]


def _name_fixes(store: Store, edits: Sequence[str]) -> list[str]:
    """Return a line for each fix among the edits, which says what finding it is of."""
    finding_by_number = dict(enumerate(store.report.findings, 1))
    numbers = [int(edit.removeprefix(FIX)) for edit in edits if re.fullmatch(FIX + r"\d+", edit)]
    return [
        f"{FIX}{number} fixes finding {number}: {finding_card.title(finding_by_number[number])}."
        for number in numbers
        if number in finding_by_number
    ]


def describe_answer(answer: Answer) -> str:
    """Return by how much some edits shorten or lengthen the mean step, as a sentence."""
    # An answer's saving and its 95 % interval are shares of the step, negative for a longer one.
    low_saving, high_saving = sorted(answer.interval)
    direction = "shorter" if answer.saving >= 0 else "longer"
    low, high = (low_saving, high_saving) if answer.saving >= 0 else (-high_saving, -low_saving)
    return (
        f"The mean step would take {text.duration(answer.after_ns)} instead of "
        f"{text.duration(answer.before_ns)}: "
        f"{text.percent(abs(answer.saving), digits=1)} {direction} (95 % interval "
        f"{text.percent(low, digits=1)} to {text.percent(high, digits=1)})."
    )


def _find_step(replay: Replay, edits: Sequence[str], asked_step: Any) -> int:
    """Return the index of the step that was asked for, else of the one with the median saving."""
    # Steps that hardly change do not count, unless all are such.
    steps = replay.graph.step_numbers.tolist()
    if asked_step in steps:
        return steps.index(asked_step)
    savings_ns = replay.measure_savings_ns(*edits)  # [step]
    least_ns = MIN_CHANGE_SHARE * replay.graph.measure_steps_ns(replay.graph.baseline_times_ns)
    changed_indexes = np.flatnonzero(np.abs(savings_ns) > least_ns)
    step_indexes = changed_indexes if len(changed_indexes) else np.arange(len(savings_ns))
    indexes_by_saving = step_indexes[np.argsort(savings_ns[step_indexes], kind="stable")]
    return int(indexes_by_saving[len(indexes_by_saving) // 2])


def _select_ranks(answer: Answer, edits: Sequence[str]) -> list[int]:
    """Return the ranks to draw: those that edits name, then those whose wait changes most."""
    # `answer.waits` is by rank how long it waits in a step, ns, as it was and with the edits.
    edited_ranks = {int(rank) for edit in edits for rank in re.findall(r"^rank:(\d+)", edit)}
    change_by_rank = {
        rank: abs(was_ns - then_ns) for rank, (was_ns, then_ns) in answer.waits.items()
    }
    ranks_by_change = sorted(
        answer.waits, key=lambda rank: (rank not in edited_ranks, -change_by_rank[rank], rank)
    )
    return sorted(ranks_by_change[: replayed_steps.MOST_ROWS])


def _read_edits(value: Any) -> tuple[str, ...]:
    """Read the edits that a browser sent back; they may be anything."""
    items = value if isinstance(value, list) else []
    edits = (item for item in items if isinstance(item, str) and item != EVERY_EDIT)
    return state.read_edits(state.BETWEEN_EDITS.join(edits))
