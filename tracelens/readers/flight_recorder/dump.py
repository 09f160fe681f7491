"""One dump as rows in our words.

Sources: PyTorch 2.4 to 2.13, `torch/csrc/distributed/c10d/FlightRecorder.hpp` (versions 2.2 to 2.10),
and torchcomms, `comms/torchcomms/hooks/fr/FlightRecorder.cpp`, which writes the same fields.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.errors import NotATrace
from tracelens.readers.links import check_inside
from tracelens.readers.words import USER_CODE, find_meaning
from tracelens.schema.gate import open_regular
from tracelens.schema.rules import LATEST_NS
from tracelens.schema.vocabulary import COLLECTIVES, POINT_TO_POINT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS: Final[dict[str, pl.DataType]] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),  # null = not completed
    "kind": pl.String(),
    "op": pl.String(),
    "name": pl.String(),
    "communicator": pl.String(),
    "group_label": pl.String(),
    "is_message": pl.Boolean(),
    "seq": pl.Int64(),  # number of a call in its group; of messages, that of a rank's own count
    "record_number": pl.Int64(),  # number of a row in its dump
    "bytes": pl.Int64(),  # where all ranks of a call have them alike: those (`_EQUAL_SIZES`)
    "peer": pl.Int64(),
    "state": pl.String(),
    "thread": pl.String(),
    "call_site": pl.String(),  # where, as file:line
}
# Whose sizes all ranks of a call have alike, by operation. Others may differ: whatever ranks give in
# all_to_all, and the list of the root in scatter and gather, which is the larger side (in scatter, the
# process group of NCCL records it as the output).
_EQUAL_SIZES: Final = {
    "allreduce": "input", "reduce": "input", "reduce_scatter": "input", "all_gather": "input",
    "gather": "lesser", "all_gather_v": "output", "broadcast": "output", "scatter": "lesser",
}  # fmt: skip
EQUAL_BYTES: Final = tuple(op for op in _EQUAL_SIZES if op in COLLECTIVES)
_UNPICKLE: Final = Path(__file__).with_name("unpickle.py")
_PATIENCE_S: Final = 300
_RANK: Final = re.compile(r"(\d{1,7})(?:\.(?:pkl|pickle|bin|json))?$")
_VARIANT: Final = re.compile(r"(?:_(?:base|oop|coalesced|into_tensor|tensor|single))+$")
_PEER: Final = re.compile(r"\d+(?:->|<-)(\d+)$")  # "send 1->2", "recv 3<-0": ranks within the group
_ELEMENT_BYTES: Final = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "Half": 2,
    "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
_BARRIER: Final = "barrier"
_OPS_THAT_SHOW_SIZES: Final = ("all_gather", "reduce_scatter", "gather", "scatter")
_NAME_OF_LAST_PART: Final = "coalesced"
_NO_LABEL: Final = ("", "undefined")
_OWN_FILES: Final = ("torch/distributed/", "torch/nn/parallel/")


@dataclass(frozen=True, eq=False)
class Dump:
    """What one file holds; groups are by their names in the file."""

    file_name: str
    format_version: str
    call_rows: pl.DataFrame  # in `COLUMNS`
    ranks_by_group: dict[str, list[int]]  # where the file says them
    size_by_group: dict[str, int]  # number of ranks, where gathers of a group tell it
    unusable_count: int  # entries without a time
    untimed_count: int  # calls that ended, without the time at which they did


def rank_in(name: str) -> int | None:
    """Return the rank that a file is named after, as PyTorch does: ``nccl_trace_rank_3``."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def read_dump(path: Path, trace: Path) -> Dump:
    """Read a dump of a trace in a process of its own.

    Raises:
        NotATrace: it is another file, damaged, or a link out of the trace.
    """
    return translate_dump(_load_value(path, trace), path)


def translate_dump(value: Any, path: Path) -> Dump:
    """Translate the plain value of a dump.

    Raises:
        NotATrace: it is another file.
    """
    content = value if isinstance(value, dict) and "version" in value else {}
    # PyTorch leaves the entries out of a dump as JSON, where there are none.
    entries = content.get("entries", [] if isinstance(content.get("pg_config"), dict) else None)
    if not isinstance(entries, list):
        raise NotATrace(
            f"'{path}' is no dump of Flight Recorder: expected a dictionary with 'version' and "
            "'entries'."
        )
    ranks_by_group = _find_group_ranks(content.get("pg_config"))
    rows = [*filter(None, (_convert_entry(entry, ranks_by_group) for entry in entries))]
    calls = pl.DataFrame(rows, schema=COLUMNS, orient="row", strict=False)
    return Dump(
        file_name=path.name,
        format_version=str(content["version"])[:20],
        call_rows=_number_by_group(_number_first_parts(calls)),
        ranks_by_group=ranks_by_group,
        size_by_group=_find_group_sizes(entries),
        unusable_count=len(entries) - calls.height,
        untimed_count=calls.filter(pl.col("end_ns") == pl.col("start_ns")).height,
    )


def _load_value(path: Path, trace: Path) -> Any:
    """Return the value of a file of JSON, or of a pickle that has plain values only."""
    try:
        check_inside(path, trace)
        with open_regular(path) as file:
            result = subprocess.run(  # our own file, and no name of the user's
                [sys.executable, "-I", str(_UNPICKLE)],
                stdin=file,
                capture_output=True,
                timeout=_PATIENCE_S,
                check=False,
            )
    except NotATrace as error:
        raise NotATrace(f"'{path}' is not read: {error}.") from error
    except subprocess.TimeoutExpired as error:
        raise NotATrace(f"'{path}' is damaged: reading it did not end within minutes.") from error
    text = result.stdout.decode("utf-8", "replace")
    if result.returncode:
        reason = " ".join(text.split()).rstrip(".") or "reading it took too much memory or time"
        raise NotATrace(f"'{path}' is no whole dump of Flight Recorder ({reason}).")
    return json.loads(text)


def _find_group_ranks(config: Any) -> dict[str, list[int]]:
    """Return the ranks of groups; gloo's dumps have none."""
    ranks_by_group: dict[str, list[int]] = {}
    for name, group_facts in config.items() if isinstance(config, dict) else ():
        try:
            ranks = json.loads(group_facts["ranks"])
        except (TypeError, KeyError, ValueError, RecursionError):
            continue
        if isinstance(ranks, list) and ranks and all(_is_count(rank) for rank in ranks):
            ranks_by_group[str(name)] = ranks
    return ranks_by_group


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 22


def _convert_entry(
    entry: Any, ranks_by_group: Mapping[str, Sequence[int]]
) -> tuple[Any, ...] | None:
    """Return a call as a row of `COLUMNS`; None for other entries, or without a time.

    The number of a message (`seq`) counts those of its two ranks, that of a collective those of its
    group. The size is taken from the side, input or output, that is as large on all ranks.
    """
    if not isinstance(entry, dict):
        return None
    created_ns = _to_time_ns(entry.get("time_created_ns"))
    if created_ns is None:
        return None
    ended_ns = _to_time_ns(entry.get("time_discovered_completed_ns"))
    is_over = entry.get("state") == "completed" or entry.get("retired") is True
    if is_over and ended_ns is None:
        ended_ns = created_ns  # when it ended was not recorded
    name = str(entry.get("profiling_name", "?"))
    torch_op, kind, op = _translate_name(name)
    is_message = entry.get("is_p2p") is True or op in POINT_TO_POINT
    seq = entry.get("p2p_seq_id" if entry.get("is_p2p") is True else "collective_seq_id")
    group, group_label = _read_group_name(entry)
    record_number = entry.get("record_id")
    side_of_size = _EQUAL_SIZES.get(torch_op, _EQUAL_SIZES.get(op or "", "input"))
    return (
        created_ns,
        max(ended_ns, created_ns) if is_over and ended_ns is not None else None,
        *(kind, op, name, group),
        group_label if group_label not in _NO_LABEL else group,
        is_message,
        seq if _is_size(seq) else None,
        record_number if _is_size(record_number) else None,
        _tensor_bytes(entry, side_of_size),
        _peer_rank(name, ranks_by_group.get(group)) if is_message else None,
        str(entry.get("state")),
        "calls",
        _call_site(entry.get("frames")),
    )


def _read_group_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of an entry's group, "?" without one, and the label that users see, or ""."""
    group = entry.get("process_group")
    name, label = (*group, "")[:2] if isinstance(group, list) and group else ("?", "")
    return str(name), str(label)


def _peer_rank(name: str, group_ranks: Sequence[int] | None) -> int | None:
    """Return the rank on the other side of a message, where the ranks of its group are known."""
    match = _PEER.search(name)
    peer_in_group = int(match[1]) if match else len(group_ranks or ())
    return group_ranks[peer_in_group] if group_ranks and peer_in_group < len(group_ranks) else None


def _find_group_sizes(entries: Sequence[Any]) -> dict[str, int]:
    """Return the number of ranks of groups, by name, where gathers or scatters of them tell it.

    Their input and output differ by that factor, unless sizes vary between ranks ("_v").
    """
    size_by_group = {}
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        torch_op, _, op = _translate_name(str(entry.get("profiling_name")))
        if op in _OPS_THAT_SHOW_SIZES and not torch_op.endswith("_v"):
            bytes_of_sides = (_tensor_bytes(entry, side) or 0 for side in ("input", "output"))
            fewer_bytes, more_bytes = sorted(bytes_of_sides)
            if fewer_bytes and more_bytes % fewer_bytes == 0:
                group, _ = _read_group_name(entry)
                size_by_group[group] = more_bytes // fewer_bytes
    return size_by_group


def _number_first_parts(calls: pl.DataFrame) -> pl.DataFrame:
    """Keep the number (`seq`) of the first of the entries that are parts of one call, and of no message.

    The last part is called "coalesced", and only this one is marked when the call is over. The size of a
    call in parts is not known. Messages have no number that both sides share.
    """
    call_key = ["communicator", "is_message", "seq"]
    is_in_parts = pl.col("name").str.ends_with(_NAME_OF_LAST_PART).any().over(call_key)
    is_in_parts &= (pl.len().over(call_key) > 1) & pl.col("seq").is_not_null()
    is_first = pl.int_range(pl.len()).over(call_key) == 0
    return calls.with_columns(
        end_ns=pl.when(is_in_parts).then(pl.col("end_ns").max().over(call_key)).otherwise("end_ns"),
        bytes=pl.when(~is_in_parts).then("bytes"),
        seq=pl.when(is_first & ~pl.col("is_message")).then("seq"),
    )


def _number_by_group(calls: pl.DataFrame) -> pl.DataFrame:
    """Count calls within their groups, where they are numbered over all groups, as torchcomms does.

    Then their numbers (`seq`) go with those of the dump's entries (`record_number`). Where the first
    entries were overwritten, nobody knows how many of a group there were, and calls get no number.
    """
    numbered_calls = calls.drop_nulls(["seq", "record_number"])
    offsets = (numbered_calls["seq"] - numbered_calls["record_number"]).unique().to_list()
    group_count = numbered_calls["communicator"].n_unique()
    has_first_entry = calls["record_number"].min() == 0
    if len(offsets) != 1 or (group_count == 1 and not (has_first_entry and offsets == [0])):
        return calls
    number_in_group = pl.int_range(pl.len()).over("communicator", "is_message")
    has_number = pl.col("seq").is_not_null() & has_first_entry
    return calls.with_columns(seq=pl.when(has_number).then(number_in_group))


def _to_time_ns(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < LATEST_NS else None


def _translate_name(name: str) -> tuple[str, str, str | None]:
    """Return the operation in PyTorch's word, and its kind and operation in ours (None if unknown)."""
    torch_op = _VARIANT.sub("", (name.partition(":")[2].partition(" ")[0] or name).strip("_"))
    if torch_op.endswith(_BARRIER):
        return torch_op, "reduction", _BARRIER
    kind, op = find_meaning(torch_op.removesuffix("_v")) or USER_CODE
    return torch_op, "reduction", op if kind == "reduction" else None


def _tensor_bytes(entry: Mapping[str, Any], side: str) -> int | None:
    """Return the bytes of all tensors on a side ("input", "output" or "lesser"), None if unknown.

    "lesser" is the smaller of both that is not empty.
    """
    if side == "lesser":
        bytes_of_sides = (_tensor_bytes(entry, "input"), _tensor_bytes(entry, "output"))
        return min(filter(None, bytes_of_sides), default=None)
    shapes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not (isinstance(shapes, list) and isinstance(dtypes, list) and len(shapes) == len(dtypes)):
        return None
    total_bytes = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        bytes_per_element = _ELEMENT_BYTES.get(dtype) if isinstance(dtype, str) else None
        if bytes_per_element is None or not _is_shape(shape):
            return None
        total_bytes += bytes_per_element * math.prod(shape)
    return total_bytes if total_bytes < 1 << 62 else None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 40


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_size, value))


def _call_site(frames: Any) -> str:
    """Return the line of the program that called, which is below PyTorch's own."""
    for frame in frames if isinstance(frames, list) else ():
        file = frame.get("filename") if isinstance(frame, dict) else None
        if isinstance(file, str) and not any(part in file for part in _OWN_FILES):
            return f"{file}:{frame.get('line')}"[:300]
    return ""
