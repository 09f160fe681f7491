"""How long would steps be if something were different? A replay with edits, and one without."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import ALL, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import TraceLensError
from tracelens.model.inert import clean
from tracelens.simulator.algorithms import ALGORITHMS
from tracelens_dashboard import text
from tracelens_dashboard.components import chart, finding_card, heading
from tracelens_dashboard.figures import replayed_steps
from tracelens_dashboard.figures.drawing import empty
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import name_of
from tracelens_dashboard.view import links, state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.replay.whatif import Answer, Replay
    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.theme import Theme
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.WHAT_IF
TITLE: Final = "What if"

EDITS: Final = "what-if-edits"
ANSWER: Final = "what-if-answer"
STEP: Final = "what-if-step"
BOTH: Final = "what-if-both"
EVERY: Final = "what-if-every"
TRY: Final = "what-if-try"
CONTROL: Final = "edit"  # the key of a control's id, whose value says what it changes
RANKS, MORE, PHASE, FIX = "ranks", "more", "phase:", "fix:"
EVERY_EDIT: Final = "all"
AS_RECORDED: Final = "as recorded"
MOST_SPANS: Final = 2_000_000  # a replay of them takes some ten seconds to make
AT_ONCE: Final = 200_000  # up to so many, all edits are tried without being asked for
FULL: Final = 100  # percent of a phase
SEEN: Final = 0.005  # of all time: a phase with less has no slider
LITTLE: Final = 0.01  # of a step: it is as it was
ROW_PX: Final = 22
FACTORS: Final = (-2, 3)  # powers of two that sliders reach
NO_STEPS: Final = (
    "This trace has no steps on all its workers: there is nothing to replay. Hooks of frameworks mark "
    "steps by themselves; in a loop of your own, write “with tl.step(i): …”."
)
TOO_LARGE: Final = (
    "This run has {spans} spans, more than a page can replay while you wait. In a terminal: tracelens "
    "whatif {name} --what all"
)
CHOOSE: Final = "Choose above what would be different."
NOTHING_SHOWN: Final = "With an edit, a step is drawn here as it was, and as it would be."
ASK: Final = "{spans} spans: to try every single edit takes a while. Press “Try all”."


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say why this run cannot be replayed here."""
    title = heading.page_title(TITLE)
    refused = _refusal(store)
    if refused:
        card = dmc.Card(html.P(refused), className="card prose", id="no-replay")
        return html.Div([title, card], className="page")
    edits = view.edits or _suggested(store)
    rows = min(len(store.ranks), replayed_steps.MOST_ROWS)
    parts = (
        _controls(store, edits),
        html.Div(id=ANSWER, className="verdict", role="status"),
        chart.card(BOTH, "One step, before and after", 140 + 2 * ROW_PX * rows, _step()),
        chart.card(EVERY, "What every single edit would save", 360, _try(store)),
    )
    grid = dmc.Grid([dmc.GridCol(part, span=12) for part in parts], gutter="sm")
    return html.Div([dcc.Store(id=EDITS, data=list(edits)), title, grid], className="page")


def register(app: Dash) -> None:
    """Answer whenever an edit changes; a bar of all edits leads to that edit."""
    edits = Input(EDITS, "data")
    chart.bind(app, BOTH, _both, edits, Input(STEP, "value"))
    chart.bind(app, EVERY, _every, Input(TRY, "n_clicks"))
    chart.follow_clicks(app, EVERY, _to_edit)

    @app.callback(
        Output(EDITS, "data"),
        Input({CONTROL: ALL}, "value"),
        State(EDITS, "data"),
        prevent_initial_call=True,
    )
    def collect(_values: Any, before: Any) -> list[str]:
        found = edits_of(_by_name(ctx.inputs_list[0]))
        if found == before:
            raise PreventUpdate
        return found

    @app.callback(Output(ANSWER, "children"), edits, current.RUN)
    def answer(edits: Any, run: Any) -> list[Component]:
        return _answered(current.store(run), _sane(edits))


def _by_name(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of controls, by what their ids say; a browser may send any ids."""
    found = {}
    for one in given:
        identity = one.get("id")
        name = identity.get(CONTROL) if isinstance(identity, dict) else None
        if isinstance(name, str):
            found[name] = one.get("value")
    return found


def edits_of(values: Mapping[str, Any]) -> list[str]:
    """Return the edits that the values of controls stand for, by the controls' names."""
    ranks = values.get(RANKS)
    named = ranks if isinstance(ranks, list) else []
    found = [f"rank:{rank}=median" for rank in named if str(rank).isdecimal()]
    for name, value in values.items():
        if name.startswith(PHASE) and isinstance(value, (int, float)) and 0 <= value < FULL:
            found.append(f"{name}*{value / FULL:g}" if value else f"{name}=0")
    for name, better in (("bandwidth", "*"), ("latency", "/"), ("message_cost", "/")):
        power = values.get(name)
        if isinstance(power, (int, float)) and power:
            worse = "/" if better == "*" else "*"
            found.append(f"{name}{better if power > 0 else worse}{2 ** abs(power):g}")
    found += [
        f"{name}={values[name]}"
        for name in ("overlap", "algorithm", "async")
        if isinstance(values.get(name), str) and values[name] != AS_RECORDED
    ]
    return [*found, *state.edits(values.get(MORE))]


def _refusal(store: Store) -> str | None:
    spans = store.report.summary.spans
    if store.windows.is_empty():
        return NO_STEPS
    if spans > MOST_SPANS:
        return TOO_LARGE.format(spans=f"{spans:,}", name=text.shown(store.name))
    return None


def _suggested(store: Store) -> tuple[str, ...]:
    """Return what the first fault of ranks asks for."""
    faults = (finding for finding in store.report.findings if finding.category == "fault")
    return next(filter(None, (links.fix_of(store, fault) for fault in faults)), ())


def _controls(store: Store, edits: Sequence[str]) -> Component:
    """Return the controls; edits for which there is none, or that a link names, are in the text."""
    as_others = {f"rank:{rank}=median": str(rank) for rank in store.ranks}
    ranks = [as_others[edit] for edit in edits if edit in as_others]
    others = [edit for edit in edits if edit not in as_others]
    chosen = dmc.MultiSelect(
        id=_control(RANKS),
        data=list(as_others.values()),
        value=ranks,
        label="Ranks as fast as the others",
        searchable=True,
        clearable=True,
        limit=50,
        size="xs",
    )
    more = dmc.TextInput(
        id=_control(MORE),
        value=f"{state.BETWEEN_EDITS} ".join(others),
        label="More edits, as in the terminal (docs/whatif.md)",
        placeholder="buckets=100MB; ranks=64; placement=greedy",
        debounce=True,
        size="xs",
    )
    sliders = [_phase(name) for name in _phases(store)]
    sliders += [_factor("bandwidth", "Bandwidth", 1), _factor("latency", "Latency", -1)]
    choices = [
        _choice("overlap", "Overlap with backprop", ("on", "off")),
        _choice("algorithm", "Allreduce by", ALGORITHMS),
    ]
    if store.shard_count:
        sliders.append(_factor("message_cost", "Servers' cost a message", -1))
        choices.append(_choice("async", "Asynchronous updates", ("on",)))
    cells = [
        dmc.GridCol(chosen, span={"base": 12, "md": 6}),
        dmc.GridCol(more, span={"base": 12, "md": 6}),
        *(dmc.GridCol(each, span={"base": 12, "xs": 6, "md": 3}) for each in [*sliders, *choices]),
    ]
    return dmc.Card(dmc.Grid(cells, gutter="md"), className="card")


def _phases(store: Store) -> list[str]:
    """Return the phases of ranks' own work that take a part of the time."""
    whole = float(np.nansum(store.times.time_in(store.times.categories)))
    shares = {name: float(np.nansum(store.times.time_in([name]))) for name in OWN_CATEGORIES}
    return [name for name, spent in shares.items() if spent > SEEN * max(whole, 1.0)]


def _control(name: str) -> dict[str, str]:
    return {CONTROL: name}


def _phase(name: str) -> Component:
    label = name_of(name)
    slider = dmc.Slider(
        id=_control(PHASE + name),
        value=FULL,
        min=0,
        max=FULL,
        step=5,
        updatemode="mouseup",
        marks=[{"value": value, "label": f"{value} %"} for value in (0, FULL)],
        size="sm",
        mx="md",
        mb="md",
        thumbLabel=f"{label}, percent of its time",
    )
    return html.Div([html.Span(f"{label[:1].upper()}{label[1:]}", className="fact-name"), slider])


def _factor(name: str, label: str, sign: int) -> Component:
    """Return a slider that is better to the right; with `sign` -1 less of it is."""
    low, high = FACTORS
    slider = dmc.Slider(
        id=_control(name),
        value=0,
        min=low,
        max=high,
        step=1,
        updatemode="mouseup",
        label=None,
        marks=[
            {"value": power, "label": f"{2.0 ** (sign * power):g} \N{MULTIPLICATION SIGN}"}
            for power in (low, 0, high)
        ],
        size="sm",
        mx="md",
        mb="md",
        thumbLabel=f"{label}, power of two",
    )
    return html.Div([html.Span(label, className="fact-name"), slider])


def _choice(name: str, label: str, values: Sequence[str]) -> Component:
    return dmc.Select(
        id=_control(name),
        data=[AS_RECORDED, *values],
        value=AS_RECORDED,
        label=label,
        allowDeselect=False,
        size="xs",
    )


def _step() -> Component:
    return dmc.NumberInput(
        id=STEP,
        placeholder="step: the usual one",
        min=0,
        size="xs",
        w=170,
        debounce=True,
        **aria("step"),
    )


def _try(store: Store) -> Component:
    """Return the button that tries all edits, where that is not done without being asked for."""
    shown = {} if store.report.summary.spans > AT_ONCE else {"display": "none"}
    return dmc.Button("Try all", id=TRY, variant="default", size="compact-xs", fw=500, style=shown)


def _answered(store: Store, edits: tuple[str, ...]) -> list[Component]:
    """Return what the edits come to, how far to trust it, and how to ask it in a terminal."""
    if not edits:
        return [html.P(CHOOSE, className="summary")]
    try:
        found = store.replay.asked(*edits)
    except TraceLensError as error:
        return [html.P(clean(str(error)), className="summary", id="what-if-refused")]
    (answer,) = found.answers
    asked = " ".join(f"--what '{edit}'" for edit in edits)
    lines = [*_named_fixes(store, edits), found.trust, *answer.remarks]
    return [
        dmc.Title(text.tied(sentence(answer)), order=2, id="verdict"),
        *(html.P(line, className="summary") for line in lines),
        html.Code(f"tracelens whatif {text.shown(store.name)} {asked}", className="summary"),
    ]


def _named_fixes(store: Store, edits: Sequence[str]) -> list[str]:
    """Return a line for each fix among the edits, which says what finding it is of."""
    named = dict(enumerate(store.report.findings, 1))
    numbers = [int(edit.removeprefix(FIX)) for edit in edits if re.fullmatch(FIX + r"\d+", edit)]
    return [
        f"{FIX}{number} fixes finding {number}: {finding_card.title(named[number])}."
        for number in numbers
        if number in named
    ]


def sentence(answer: Answer) -> str:
    """Return what some edits do to the mean step, as a sentence."""
    low, high = sorted(answer.interval)
    way = "shorter" if answer.saving >= 0 else "longer"
    ends = (low, high) if answer.saving >= 0 else (-high, -low)
    return (
        f"The mean step would take {text.duration(answer.after_ns)} instead of "
        f"{text.duration(answer.before_ns)}: {text.percent(abs(answer.saving), 1)} {way} "
        f"(95 % interval {text.percent(ends[0], 1)} to {text.percent(ends[1], 1)})."
    )


def _both(store: Store, theme: Theme, edits: Any, step: Any) -> Drawing:
    wanted = _sane(edits)
    if not wanted:
        return empty(theme, NOTHING_SHOWN)
    try:
        replay = store.replay
        row = _row(replay, wanted, step)
        pair = replay.step(row, *wanted)
        (answer,) = replay.asked(*wanted).answers
    except TraceLensError as error:
        return empty(theme, clean(str(error)))
    shown = _shown(answer, wanted)
    return replayed_steps.steps(pair, int(replay.model.steps[row]), shown, theme)


def _row(replay: Replay, edits: Sequence[str], step: Any) -> int:
    """Return the place of a step that was asked for, else of the one with the median of what changes."""
    steps = replay.model.steps.tolist()
    if step in steps:
        return steps.index(step)
    saved = replay.saved(*edits)
    changed = np.flatnonzero(np.abs(saved) > LITTLE * replay.model.lengths(replay.model.usual))
    places = changed if len(changed) else np.arange(len(saved))
    order = places[np.argsort(saved[places], kind="stable")]
    return int(order[len(order) // 2])


def _shown(answer: Answer, edits: Sequence[str]) -> list[int]:
    """Return the ranks to draw: those that edits name, then those whose waiting changes most."""
    named = {int(rank) for edit in edits for rank in re.findall(r"^rank:(\d+)", edit)}
    moved = {rank: abs(was - then) for rank, (was, then) in answer.waits.items()}
    order = sorted(answer.waits, key=lambda rank: (rank not in named, -moved[rank], rank))
    return sorted(order[: replayed_steps.MOST_ROWS])


def _every(store: Store, theme: Theme, clicks: Any) -> Drawing:
    spans = store.report.summary.spans
    if not clicks and spans > AT_ONCE:
        return empty(theme, ASK.format(spans=f"{spans:,}"))
    try:
        return replayed_steps.savings(store.replay.asked(EVERY_EDIT), theme)
    except TraceLensError as error:
        return empty(theme, clean(str(error)))


def _to_edit(store: Store, point: dict[str, Any]) -> str | None:
    given = point.get("customdata")
    wanted = state.edits(given[0] if isinstance(given, list) and given else None)
    return links.to_replay(store, wanted) if wanted else None


def _sane(edits: Any) -> tuple[str, ...]:
    """Read the edits that a browser sent back; they may be anything."""
    given = edits if isinstance(edits, list) else []
    single = (one for one in given if isinstance(one, str) and one != EVERY_EDIT)
    return state.edits(state.BETWEEN_EDITS.join(single))
