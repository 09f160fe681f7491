"""The view in the address bar: what a link restores. Values that make no sense are ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from tracelens.lod.viewport import LEAST_ROW_PX, MOST_ROW_PX
from tracelens_dashboard.runs import selection
from tracelens_dashboard.view import notes
from tracelens_dashboard.view.row_groups import SHARED

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
SORTS: Final = ("rank", "lateness", *SHARED)

_NUMBER = re.compile(r"[0-9]{1,18}")
_SELECTED = re.compile(r"([0-9]{1,6})-([0-9]{1,18})(?:-([0-9]{1,3}))?")
_KEY = re.compile(r"(?:ps|g)?[0-9]{1,7}")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class ViewState:
    """What is looked at: a window in ns since the run's start, pinned ranks, marked steps, a shard.

    `selected` is a row of the timeline and the moment of a click, in ns since the start, and then of
    which track, if it was one of an opened process; `run` names the run, where several are served,
    or a part of one (`runs.selection`), and `compare` the others; `path` whether the
    critical path is drawn. `opened` are the processes whose tracks are shown, by rank, shards as
    ``ps0``, and the groups of ranks whose rows are, as ``g`` and their lowest rank; null = as many as
    there is room for. `row_px` is the height of rows that was asked for; `find` what is looked for
    by name; `edits` are what is different in a replay. `notes` are those of the user, and
    `notes_left_out` how many others an address has that make no sense.
    """

    start_ns: int | None = None
    end_ns: int | None = None
    pins: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None
    shard: int | None = None
    sort: str = "rank"
    run: str | None = None
    compare: tuple[str, ...] = ()
    selected: tuple[int, ...] | None = None
    path: bool = False
    opened: tuple[str, ...] | None = None
    row_px: int | None = None
    find: str = ""
    edits: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    notes_left_out: int = field(default=0, compare=False)

    @property
    def compared(self) -> tuple[str, ...]:
        """Which parts of the other runs are compared with: the same as of this one."""
        run_part = selection.read(self.run)
        if run_part is None:
            return self.compare
        most = MOST_BASELINES if run_part.choice.is_all else MOST_PARTS
        return tuple(run_part.in_run(run_id) or NO_RUN for run_id in self.compare[:most])

    @property
    def query(self) -> str:
        """Return it as the query of a link; what is not set is left out."""
        values = {
            "run": self.run,
            "compare": ",".join(self.compare) or None,
            "t0": self.start_ns,
            "t1": self.end_ns,
            "pin": ",".join(map(str, self.pins)) or None,
            "steps": f"{self.steps[0]}-{self.steps[1]}" if self.steps else None,
            "shard": self.shard,
            "sel": "-".join(map(str, self.selected)) if self.selected else None,
            "open": None if self.opened is None else ",".join(self.opened) or NONE_OPENED,
            "row": self.row_px,
            "find": self.find or None,
            "what": BETWEEN_EDITS.join(self.edits) or None,
            "note": notes.write(self.notes) or None,
            "path": 1 if self.path else None,
            "sort": self.sort if self.sort != SORTS[0] else None,
        }
        return urlencode({k: v for k, v in values.items() if v is not None}, safe=",;:=*")

    def link(self, path: str) -> str:
        """Return the address that shows this view on a page."""
        return f"{path}?{self.query}" if self.query else path


def parse(query: Mapping[str, object]) -> ViewState:
    """Read a view from the values of an address; those that make no sense are ignored."""
    values = {key: value for key, value in query.items() if _sane(value)}
    start_ns, end_ns = _number(values.get("t0")), _number(values.get("t1"))
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        start_ns = end_ns = None
    sort = str(values.get("sort"))
    notes_read, left_out_count = notes.read(query.get("note"))
    return ViewState(
        start_ns=start_ns,
        end_ns=end_ns,
        pins=_numbers(values.get("pin")),
        steps=_steps(values.get("steps")),
        shard=_number(values.get("shard")),
        sort=sort if sort in SORTS else SORTS[0],
        run=_run(values.get("run")),
        compare=baselines(str(values.get("compare") or "").split(",")),
        selected=_read_selected(values.get("sel")),
        path=values.get("path") == "1",
        opened=_read_opened(values.get("open")),
        row_px=row_height(values.get("row")),
        find=find_text(values.get("find")),
        edits=edits(values.get("what")),
        notes=notes_read,
        notes_left_out=left_out_count,
    )


def read(search: object) -> ViewState:
    """Read the query of an address as the browser sends it, with its question mark."""
    text = search if isinstance(search, str) else ""
    return parse(dict(parse_qsl(text.removeprefix("?")[:LONGEST_QUERY])))


def _run(value: object) -> str | None:
    """Read the id of a run, or of a part of one; what cannot be any counts as one that is not served."""
    if not isinstance(value, str):
        return None
    found = selection.read(value)
    return found.key if found else NO_RUN


def baselines(values: object) -> tuple[str, ...]:
    """Return those of some values that are read as runs, each once."""
    known = values if isinstance(values, list | tuple) else ()
    found = dict.fromkeys(_run(one) for one in known if one)
    return tuple(one for one in found if one)[:MOST_BASELINES]


def _sane(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_VALUE


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None


def _numbers(value: object) -> tuple[int, ...]:
    found = [_number(item) for item in value.split(",")] if isinstance(value, str) else []
    return tuple(dict.fromkeys(n for n in found if n is not None))[:MOST_PINS]


def _read_selected(value: object) -> tuple[int, ...] | None:
    match = _SELECTED.fullmatch(value) if isinstance(value, str) else None
    return tuple(int(number) for number in match.groups() if number) if match else None


def _read_opened(value: object) -> tuple[str, ...] | None:
    """Read which processes are opened; null where the address does not say."""
    if not isinstance(value, str) or not value:
        return None
    return opened_keys([] if value == NONE_OPENED else value.split(","))


def find_text(value: object) -> str:
    """Read what is looked for by name; empty where it cannot be any."""
    text = value.strip() if isinstance(value, str) else ""
    return text if text.isprintable() and len(text) <= LONGEST_SEARCH else ""


def edits(value: object) -> tuple[str, ...]:
    """Return the edits of a text, each once; whether there are such edits is not asked here."""
    text = value if isinstance(value, str) and value.isprintable() else ""
    named = (edit.strip() for edit in text[:LONGEST_VALUE].split(BETWEEN_EDITS))
    return tuple(dict.fromkeys(edit for edit in named if edit))[:MOST_EDITS]


def opened_keys(values: object) -> tuple[str, ...]:
    """Return those of some values that name processes, each once."""
    known = values if isinstance(values, list | tuple) else ()
    keys = [key for key in known if isinstance(key, str) and _KEY.fullmatch(key)]
    return tuple(dict.fromkeys(keys))[:MOST_OPENED]


def row_height(value: object) -> int | None:
    """Read the height of rows in pixels; null where none is asked for that is possible."""
    number = _number(str(value)) if isinstance(value, int | str) else None
    possible = number is not None and LEAST_ROW_PX <= number <= MOST_ROW_PX
    return number if possible else None


def _steps(value: object) -> tuple[int, int] | None:
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    return (first, last) if first <= last else None
