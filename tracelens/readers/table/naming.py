"""Recognizes the columns of a table, and its words: by synonyms, or by the user's `--map`.

Times may carry their unit in a column's name (``start_us``, ``Duration (ms)``). The meaning of
words for a kind, an operation or a role is in `tracelens.readers.words`. In sentences a table's own
words are on one line, short, and such that a shell takes them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.readers.base import quoted
from tracelens.readers.words import find_meaning, find_role, normalize_word
from tracelens.schema.vocabulary import KINDS, OPS, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.readers.words import Meaning

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
    **dict.fromkeys(("bucket", "key", "request", "queue_depth", "micro_step", "algorithm"), ""),
    **dict.fromkeys(("device_start_ns", "device_duration_ns", "stream", "status", "value"), ""),
    **dict.fromkeys(("world", "clock"), ""),
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
MAX_COLUMNS_LISTED: Final = 20  # columns in a sentence: more are counted [policy]
_KINDS: Final = (*KINDS, *(op for ops in OPS.values() for op in ops))
_WORD: Final = re.compile(r"[^\W_]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OUR_NAMES: Final[dict[str, str]] = {
    normalize_word(word): our_name
    for our_name, synonyms in (TIMES | OTHERS).items()
    for word in (our_name, *synonyms.split())
}
_Word = TypeVar("_Word")


def map_option(their_name: str, our_name: str) -> str:
    """Return the option that names a column or word of a table."""
    option = f"{their_name}={our_name}"
    return f"--map {shlex.quote(option) if option.isprintable() else quoted(option)}"


@dataclass(frozen=True)
class Source:
    """The source of a column's values; `unit_ns` is the unit in its name, None if none."""

    column_name: str
    unit_ns: int | None = None


@dataclass(frozen=True)
class Plan:
    """Which columns of a table are read as which of ours; nothing is read from `unused_columns`."""

    source_by_our_name: Mapping[str, Source]
    unused_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Renaming:
    """The user's names for columns and words; see `parse`."""

    # Our name of a column, and its unit in ns.
    our_column_by_theirs: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    meaning_by_word: Mapping[str, Meaning] = field(default_factory=dict)  # by normalized word
    role_by_word: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, theirs_to_ours: Mapping[str, str]) -> Renaming:
        """Read ``{"worker_no": "rank", "t0": "start_us", "kind:predict": "forward"}``.

        On the left is the table's word: a column, or after ``kind:``, ``op:`` or ``role:`` a
        word in such a column; on the right what TraceLens calls it.

        Raises:
            InvalidArgument: TraceLens has no such column or word.
        """
        our_column_by_theirs: dict[str, tuple[str, int | None]] = {}
        meaning_by_word: dict[str, Meaning] = {}
        role_by_word: dict[str, str] = {}
        for their_name, our_name in theirs_to_ours.items():
            column, colon, table_word = their_name.partition(":")
            if colon and column in {"kind", "op"}:
                kind_meaning = find_meaning(our_name)
                meaning_by_word[normalize_word(table_word)] = _require(
                    kind_meaning, their_name, our_name, "kind or operation", _KINDS
                )
            elif colon and column == "role":
                role_by_word[normalize_word(table_word)] = _require(
                    find_role(our_name), their_name, our_name, "role", ROLES
                )
            else:
                our_column_by_theirs[their_name] = _require(
                    find_column_meaning(our_name), their_name, our_name, "column", COLUMNS
                )
        return cls(our_column_by_theirs, meaning_by_word, role_by_word)


def _require(
    value: _Word | None, their_name: str, our_name: str, what: str, allowed: tuple[str, ...]
) -> _Word:
    if value is None:
        unit = ", times with a unit such as start_us" if allowed is COLUMNS else ""
        raise InvalidArgument(
            f"{map_option(their_name, our_name)}: {quoted(our_name)} is no {what} of TraceLens; "
            f"expected one of {', '.join(allowed)}{unit}."
        )
    return value


def plan(columns: Iterable[str], renaming: Renaming, table: str) -> Plan:
    """Decide which of a table's columns is which.

    Raises:
        UnusableInput: a required column is missing, or several could be it.
        InvalidArgument: the user named a column that the table does not have.
    """
    names = [name for name in columns if not name.startswith("__")]
    unknown_columns = [
        their_name for their_name in renaming.our_column_by_theirs if their_name not in names
    ]
    if unknown_columns:
        unknown = quoted(unknown_columns[0])
        raise InvalidArgument(f"{table} has no column {unknown}; it has {_list_columns(names)}.")
    source_by_our_name = {
        ours: Source(theirs, unit_ns)
        for theirs, (ours, unit_ns) in renaming.our_column_by_theirs.items()
    }
    for our_name, candidates in _candidates(names, renaming).items():
        if our_name not in source_by_our_name:
            source_by_our_name[our_name] = _choose_source(our_name, candidates, table)
    if "end" in source_by_our_name:
        source_by_our_name.pop("duration", None)
    if EVENT_TYPE in names and EVENT_TYPE not in {
        source.column_name for source in source_by_our_name.values()
    }:
        source_by_our_name[EVENT_TYPE] = Source(EVENT_TYPE)
    missing_names = [our_name for our_name in REQUIRED if our_name not in source_by_our_name]
    if "duration" in source_by_our_name and "end" in missing_names:
        missing_names.remove("end")
    if missing_names:
        needed = " and ".join(f"'{our_name}'" for our_name in missing_names)
        raise UnusableInput(
            f"{table[0].upper()}{table[1:]} has {_list_columns(names)}: expected one row a span with "
            f"rank, start_ns and end_ns (or duration_ns), and none of them is {needed}; if one is, say "
            f"so with --map COLUMN={missing_names[0]}."
        )
    used_columns = {source.column_name for source in source_by_our_name.values()}
    return Plan(source_by_our_name, tuple(name for name in names if name not in used_columns))


def _candidates(names: list[str], renaming: Renaming) -> dict[str, list[Source]]:
    """Return for each of our columns the table's columns that may be it, the closest first."""
    candidates: dict[str, list[Source]] = {}
    for name in names:
        name_and_unit = (
            find_column_meaning(name) if name not in renaming.our_column_by_theirs else None
        )
        if name_and_unit:
            our_name, unit_ns = name_and_unit
            candidates.setdefault(our_name, []).append(Source(name, unit_ns))
    for our_name, sources in candidates.items():
        sources.sort(key=partial(_source_distance, our_name))
    return candidates


def _choose_source(our_name: str, candidates: list[Source], table: str) -> Source:
    """Return the first candidate; for a required column only if its name is plain, or it is alone."""
    closest, *others = candidates
    if others and our_name in REQUIRED and _distance(our_name, closest.column_name) > 1:
        both = " and ".join(quoted(source.column_name) for source in candidates[:2])
        raise UnusableInput(
            f"In {table} the columns {both} could both be '{our_name}': "
            f"say which with {map_option(closest.column_name, our_name)}."
        )
    return closest


def _split_words(name: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_HUMP.sub(" ", name))]


def find_column_meaning(name: str) -> tuple[str, int | None] | None:
    """Return our column and the unit, in ns, that a column's name means; None if it means nothing."""
    words = _split_words(name)
    joined_words, without_unit = "".join(words), "".join(words[:-1])
    if joined_words in _OUR_NAMES:
        return _OUR_NAMES[joined_words], None
    if words and words[-1] in UNITS and _OUR_NAMES.get(without_unit) in TIMES:
        return _OUR_NAMES[without_unit], UNITS[words[-1]]
    return None


def _distance(our_name: str, name: str) -> int:
    """Return the distance of a name from ours: 0 equal, 1 but for unit or case, then synonyms."""
    if name in {our_name, f"{our_name}_ns"}:
        return 0
    words = _split_words(name)
    joined_words = "".join(words[:-1] if words[-1] in UNITS else words)
    synonyms = [normalize_word(word) for word in (our_name, *(TIMES | OTHERS)[our_name].split())]
    return 1 + (synonyms.index(joined_words) if joined_words in synonyms else len(synonyms))


def _source_distance(our_name: str, source: Source) -> int:
    return _distance(our_name, source.column_name)


def _list_columns(names: list[str]) -> str:
    if not names:
        return "no column"
    unlisted_count = len(names) - MAX_COLUMNS_LISTED
    more = f" and {unlisted_count} more" if unlisted_count > 0 else ""
    return f"the columns {', '.join(map(quoted, names[:MAX_COLUMNS_LISTED]))}{more}"
