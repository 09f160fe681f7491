"""The view in the address bar: what a link restores. Values that make no sense are ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from tracelens.lod.viewport import LEAST_ROW_PX, MOST_ROW_PX
from tracelens_dashboard.runs import selection
from tracelens_dashboard.view import notes
from tracelens_dashboard.view.row_groups import GROUP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_dashboard.figures.timeline.frame import Note

LONGEST_VALUE: Final = 500
LONGEST_QUERY: Final = 4000
NO_RUN: Final = "unknown"
MOST_PINS: Final = 12
MOST_OPENED: Final = 12
MOST_BASELINES: Final = 24
MOST_PARTS: Final = 7  # of runs: they are open at the same time, as none has an index
LONGEST_SEARCH: Final = 100
BETWEEN_EDITS: Final = ";"
MOST_EDITS: Final = 12
NONE_OPENED: Final = "none"
SORTS: Final = ("rank", "lateness", *GROUP_COLUMNS)

_NUMBER = re.compile(r"[0-9]{1,18}")
_SELECTED = re.compile(r"([0-9]{1,6})-([0-9]{1,18})(?:-([0-9]{1,3}))?")
_OPENED_KEY = re.compile(r"(?:ps|g)?[0-9]{1,7}")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class ViewState:
    """The view of a user: a window in ns since the run's start, pinned ranks, marked steps, a shard.

    `selected_point` is a row of the timeline and the time of a click, in ns since the start. A
    third number is the track, if the click was on a track of an opened process. `run_key` names the
    run, if several are served, or a part of one (`runs.selection`), and `baseline_ids` the others.
    `shows_path` is whether the critical path is drawn. `opened_row_keys` are the processes whose
    tracks are shown, by rank, shards as ``ps0``. Groups of ranks whose rows are shown are ``g`` and
    their lowest rank. None: as many as fit. `row_px` is the requested height of rows;
    `replay_edits` are the changes of a replay. `notes` are those of the user, and
    `left_out_note_count` is the number of invalid notes in the address.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    pinned_ranks: tuple[int, ...] = ()
    marked_steps: tuple[int, int] | None = None
    shard: int | None = None
    sort_key: str = "rank"
    run_key: str | None = None
    baseline_ids: tuple[str, ...] = ()
    selected_point: tuple[int, ...] | None = None
    shows_path: bool = False
    opened_row_keys: tuple[str, ...] | None = None
    row_px: int | None = None
    searched_name: str = ""
    replay_edits: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    left_out_note_count: int = field(default=0, compare=False)

    @property
    def baseline_keys(self) -> tuple[str, ...]:
        """What is compared with: of each baseline the same ranks and steps as of this run."""
        run_selection = selection.read(self.run_key)
        if run_selection is None:
            return self.baseline_ids
        max_baselines = MOST_BASELINES if run_selection.choice.is_whole_run else MOST_PARTS
        keys = map(run_selection.key_in_run, self.baseline_ids[:max_baselines])
        return tuple(key or NO_RUN for key in keys)

    @property
    def query_string(self) -> str:
        """The view as the query of a link; what is not set is left out."""
        values = {
            "run": self.run_key,
            "compare": ",".join(self.baseline_ids) or None,
            "t0": self.start_ns,
            "t1": self.end_ns,
            "pin": ",".join(map(str, self.pinned_ranks)) or None,
            "steps": "-".join(map(str, self.marked_steps)) if self.marked_steps else None,
            "shard": self.shard,
            "sel": "-".join(map(str, self.selected_point)) if self.selected_point else None,
            "open": None
            if self.opened_row_keys is None
            else ",".join(self.opened_row_keys) or NONE_OPENED,
            "row": self.row_px,
            "find": self.searched_name or None,
            "what": BETWEEN_EDITS.join(self.replay_edits) or None,
            "note": notes.write(self.notes) or None,
            "path": 1 if self.shows_path else None,
            "sort": self.sort_key if self.sort_key != SORTS[0] else None,
        }
        return urlencode({k: v for k, v in values.items() if v is not None}, safe=",;:=*")

    def make_link(self, path: str) -> str:
        """Return the address that shows this view on a page."""
        return f"{path}?{self.query_string}" if self.query_string else path


def parse(query: Mapping[str, object]) -> ViewState:
    """Read a view from the values of an address, by key; those that make no sense are ignored."""
    values = {key: value for key, value in query.items() if _is_short_text(value)}
    start_ns, end_ns = _read_number(values.get("t0")), _read_number(values.get("t1"))
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        start_ns = end_ns = None
    sort = str(values.get("sort"))
    notes_read, left_out_count = notes.read(query.get("note"))
    return ViewState(
        start_ns=start_ns,
        end_ns=end_ns,
        pinned_ranks=_read_ranks(values.get("pin")),
        marked_steps=_read_steps(values.get("steps")),
        shard=_read_number(values.get("shard")),
        sort_key=sort if sort in SORTS else SORTS[0],
        run_key=_read_run_key(values.get("run")),
        baseline_ids=read_baselines(str(values.get("compare") or "").split(",")),
        selected_point=_read_selected(values.get("sel")),
        shows_path=values.get("path") == "1",
        opened_row_keys=_read_opened(values.get("open")),
        row_px=read_row_height(values.get("row")),
        searched_name=read_searched_name(values.get("find")),
        replay_edits=read_edits(values.get("what")),
        notes=notes_read,
        left_out_note_count=left_out_count,
    )


def read(search: object) -> ViewState:
    """Read the query of an address as the browser sends it, with its question mark."""
    text = search if isinstance(search, str) else ""
    return parse(dict(parse_qsl(text.removeprefix("?")[:LONGEST_QUERY])))


def _read_run_key(value: object) -> str | None:
    """Read the key of a run, or of a part of one; what is no key counts as a run that is not served."""
    if not isinstance(value, str):
        return None
    run_selection = selection.read(value)
    return run_selection.address_key if run_selection else NO_RUN


def read_baselines(values: object) -> tuple[str, ...]:
    """Return the ids of the runs among some values, each once, at most `MOST_BASELINES`."""
    texts = values if isinstance(values, list | tuple) else ()
    run_ids = dict.fromkeys(_read_run_key(text) for text in texts if text)
    return tuple(run_id for run_id in run_ids if run_id)[:MOST_BASELINES]


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_VALUE


def _read_number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def _read_ranks(value: object) -> tuple[int, ...]:
    numbers = map(_read_number, value.split(",")) if isinstance(value, str) else ()
    return tuple(dict.fromkeys(n for n in numbers if n is not None))[:MOST_PINS]


def _read_selected(value: object) -> tuple[int, ...] | None:
    match = _SELECTED.fullmatch(value) if isinstance(value, str) else None
    return tuple(int(number) for number in match.groups() if number) if match else None


def _read_opened(value: object) -> tuple[str, ...] | None:
    """Read which processes are opened; None where the address does not say."""
    if not isinstance(value, str) or not value:
        return None
    return read_opened_keys([] if value == NONE_OPENED else value.split(","))


def read_searched_name(value: object) -> str:
    """Read the name that is searched for; empty where it cannot be one."""
    text = value.strip() if isinstance(value, str) else ""
    return text if text.isprintable() and len(text) <= LONGEST_SEARCH else ""


def read_edits(value: object) -> tuple[str, ...]:
    """Return the edits of a text, each once; whether there are such edits is not asked here."""
    text = value if isinstance(value, str) and value.isprintable() else ""
    edits = (edit.strip() for edit in text[:LONGEST_VALUE].split(BETWEEN_EDITS))
    return tuple(dict.fromkeys(edit for edit in edits if edit))[:MOST_EDITS]


def read_opened_keys(values: object) -> tuple[str, ...]:
    """Return the values that name processes or groups of ranks, each once."""
    items = values if isinstance(values, list | tuple) else ()
    keys = [key for key in items if isinstance(key, str) and _OPENED_KEY.fullmatch(key)]
    return tuple(dict.fromkeys(keys))[:MOST_OPENED]


def read_row_height(value: object) -> int | None:
    """Read the height of rows in pixels; None where none is asked for that is possible."""
    row_px = _read_number(str(value)) if isinstance(value, int | str) else None
    is_possible = row_px is not None and LEAST_ROW_PX <= row_px <= MOST_ROW_PX
    return row_px if is_possible else None


def _read_steps(value: object) -> tuple[int, int] | None:
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return (first, last) if first <= last else None
