"""Which column of a table is which, and what its words mean: by synonyms, or by the user's `--map`.

Times may carry their unit in a column's name (``start_us``, ``Duration (ms)``). What a word for a
kind, an operation or a role means is in `tracelens.readers.words`. In sentences a table's own words
stand on one line, short, and such that a shell takes them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.readers.base import quoted
from tracelens.readers.words import meaning, normal, role
from tracelens.schema.vocabulary import KINDS, OPS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.readers.words import Meaning

__all__ = [
    "COLUMNS",
    "EVENT_TYPE",
    "OTHERS",
    "REQUIRED",
    "TIMES",
    "UNITS",
    "Plan",
    "Renaming",
    "Source",
    "map_option",
    "plan",
]


TIMES: Final[dict[str, str]] = {
    "start": "begin ts start_time begin_time time_start timestamp t_start start_timestamp t0",
    "end": "stop finish end_time finish_time stop_time time_end t_end end_timestamp t1",
    "duration": "dur elapsed duration_time elapsed_time",
}
OTHERS: Final[dict[str, str]] = {
    "rank": "global_rank rank_id process process_id pid worker worker_id proc",
    "host": "hostname host_name node node_name machine",
    "role": "process_role",
    "thread": "tid thread_id thread_name track lane",
    "kind": "category cat phase event_type activity type",  # `type`: see `plan`
    "name": "label event event_name span function",
    "step": "iteration iter step_id global_step batch_idx step_number training_step",
    "op": "operation collective collective_name",
    "bytes": "nbytes size size_bytes message_size num_bytes payload_bytes",
    "communicator": "comm group process_group pg communicator_id",
    "seq": "sequence sequence_number seq_id seqnum seq_no",
    "peer": "dest destination remote_rank peer_rank",
    "shard": "shard_id ps_shard server server_id",
    # Also understood, by these names: what TraceLens' own events have beyond that.
    "bucket": "",
    "key": "",
    "request": "",
    "queue_depth": "",
    "micro_step": "",
    "algorithm": "",
    "device_start_ns": "",
    "device_duration_ns": "",
    "stream": "",
    "status": "",
    "value": "",
    "world": "",
    "clock": "",
}
COLUMNS: Final = (*TIMES, *OTHERS)
UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
}
EVENT_TYPE: Final = "type"  # span, instant, counter; where there is no kind, a word for it
REQUIRED: Final = ("rank", "start", "end")
_KINDS: Final = (*KINDS, *(op for ops in OPS.values() for op in ops))
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHOWN: Final = 20
_T = TypeVar("_T")


def map_option(theirs: str, ours: str) -> str:
    """Return the option that names a column or word of a table."""
    option = f"{theirs}={ours}"
    return f"--map {shlex.quote(option) if option.isprintable() else quoted(option)}"


@dataclass(frozen=True)
class Source:
    """The source of a column's values; `unit_ns` is the unit in its name, null if none."""

    column: str
    unit_ns: int | None = None


@dataclass(frozen=True)
class Plan:
    """`sources` by our names; `unused` are the table's columns that nothing is read from."""

    sources: Mapping[str, Source]
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Renaming:
    """The user's names for columns and words; see `parse`."""

    columns: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    kinds: Mapping[str, Meaning] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, theirs_to_ours: Mapping[str, str]) -> Renaming:
        """Read ``{"worker_no": "rank", "t0": "start_us", "kind:predict": "forward"}``.

        On the left is the table's word: a column, or after ``kind:``, ``op:`` or ``role:`` a
        word in such a column; on the right what TraceLens calls it.

        Raises:
            InvalidArgument: TraceLens has no such column or word.
        """
        columns: dict[str, tuple[str, int | None]] = {}
        kinds: dict[str, Meaning] = {}
        roles: dict[str, str] = {}
        for theirs, ours in theirs_to_ours.items():
            column, colon, word = theirs.partition(":")
            if colon and column in {"kind", "op"}:
                kinds[normal(word)] = _known(
                    theirs, ours, meaning(ours), "kind or operation", _KINDS
                )
            elif colon and column == "role":
                roles[normal(word)] = _known(theirs, ours, role(ours), "role", ROLES)
            else:
                columns[theirs] = _known(theirs, ours, _recognised(ours), "column", COLUMNS)
        return cls(columns, kinds, roles)


def plan(columns: Iterable[str], renaming: Renaming, table: str) -> Plan:
    """Decide which of a table's columns is which.

    Raises:
        UnusableInput: a required column is missing, or several could be it.
        InvalidArgument: the user named a column that the table does not have.
    """
    names = [name for name in columns if not name.startswith("__")]
    missing = [theirs for theirs in renaming.columns if theirs not in names]
    if missing:
        raise InvalidArgument(
            f"{table} has no column {quoted(missing[0])}; it has {_listed(names)}."
        )
    chosen = {ours: Source(theirs, unit) for theirs, (ours, unit) in renaming.columns.items()}
    for ours, sources in _candidates(names, renaming).items():
        if ours not in chosen:
            chosen[ours] = _best(ours, sources, table)
    if "end" in chosen:
        chosen.pop("duration", None)
    if EVENT_TYPE in names and EVENT_TYPE not in {source.column for source in chosen.values()}:
        chosen[EVENT_TYPE] = Source(EVENT_TYPE)
    _require(chosen, names, table)
    used = {source.column for source in chosen.values()}
    return Plan(chosen, tuple(name for name in names if name not in used))


def _candidates(names: list[str], renaming: Renaming) -> dict[str, list[Source]]:
    """Return for each of our columns the table's columns that may be it, the best first."""
    found: dict[str, list[tuple[int, Source]]] = {}
    for name in names:
        recognised = _recognised(name) if name not in renaming.columns else None
        if recognised:
            ours, unit = recognised
            found.setdefault(ours, []).append((_place(ours, name), Source(name, unit)))
    return {
        ours: [source for _, source in sorted(sources, key=lambda entry: entry[0])]
        for ours, sources in found.items()
    }


def _best(ours: str, sources: list[Source], table: str) -> Source:
    """Return the first; of what is required, only if it is the plain name or the only one."""
    first, *others = sources
    if others and ours in REQUIRED and _place(ours, first.column) > 1:
        both = " and ".join(quoted(source.column) for source in sources[:2])
        raise UnusableInput(
            f"In {table} the columns {both} could both be '{ours}': "
            f"say which with {map_option(first.column, ours)}."
        )
    return first


def _require(chosen: Mapping[str, Source], names: list[str], table: str) -> None:
    lacking = [ours for ours in REQUIRED if ours not in chosen]
    if "duration" in chosen and "end" in lacking:
        lacking.remove("end")
    if lacking:
        needed = " and ".join(f"'{ours}'" for ours in lacking)
        raise UnusableInput(
            f"{table[0].upper()}{table[1:]} has {_listed(names)}: expected one row a span with rank, "
            f"start_ns and end_ns (or duration_ns), and none of them is {needed}; if one is, say "
            f"so with --map COLUMN={lacking[0]}."
        )


def _recognised(name: str) -> tuple[str, int | None] | None:
    """Return our column and the unit that a column's name means; None if it means nothing."""
    words = [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", name))]
    joined = "".join(words)
    if joined in _OURS:
        return _OURS[joined], None
    base = "".join(words[:-1])
    if words and words[-1] in UNITS and _OURS.get(base) in TIMES:
        return _OURS[base], UNITS[words[-1]]
    return None


def _place(ours: str, name: str) -> int:
    """Return how close a column's name is to ours: 0 exactly, 1 but for unit or case, then synonyms."""
    if name in {ours, f"{ours}_ns"}:
        return 0
    words = [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", name))]
    if words[-1] in UNITS:
        words.pop()
    synonyms = [normal(word) for word in (ours, *(TIMES | OTHERS)[ours].split())]
    joined = "".join(words)
    return 1 + (synonyms.index(joined) if joined in synonyms else len(synonyms))


_OURS: Final[dict[str, str]] = {
    normal(word): ours
    for ours, texts in (TIMES | OTHERS).items()
    for word in (ours, *texts.split())
}


def _known(theirs: str, ours: str, found: _T | None, what: str, known: tuple[str, ...]) -> _T:
    if found is None:
        unit = ", times with a unit such as start_us" if known is COLUMNS else ""
        raise InvalidArgument(
            f"{map_option(theirs, ours)}: {quoted(ours)} is no {what} of TraceLens; expected one of "
            f"{', '.join(known)}{unit}."
        )
    return found


def _listed(names: list[str]) -> str:
    if not names:
        return "no column"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the columns {', '.join(map(quoted, names[:_SHOWN]))}{more}"
