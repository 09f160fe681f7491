"""Perfetto's trace manifest: how far apart the clocks of the user's own trace files are.

Perfetto merges the files of an archive (tar or zip) onto one timeline. A manifest in it says which
machine each file is of, and how its clock relates to that of another file. Here each rank is a machine,
as processes of different hosts, and devices in profiles of one host, have the same numbers. Files
without a clock (JSON) are pinned to the timeline of the first one, those of Perfetto are related by
their clock.

Source: docs/reference/perfetto-manifest.md of Perfetto, version 1 of the format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.exports.content import Saved
from tracelens.exports.output import open_new_file, size_of
from tracelens.model.fmt import join_words, shown_name
from tracelens.readers.event_stream import EventStream, looks_like_events
from tracelens.readers.perfetto.packets import is_perfetto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracelens.exports.content import Content
    from tracelens.model.trace import Trace

SUFFIX: Final = ".perfetto_manifest.json"
OPEN_WITH: Final = (
    "'trace_processor util merge -o merged.tar --manifest {place} FILES' (Perfetto 58 or later), or as "
    "a tar of it and the files"
)
_CLOCKS: Final = {
    1: "REALTIME",
    2: "REALTIME_COARSE",
    3: "MONOTONIC",
    4: "MONOTONIC_COARSE",
    5: "MONOTONIC_RAW",
    6: "BOOTTIME",
}
# of finding a time before alignment: each is nearer by a clock's drift [definition]
_ROUNDS: Final = 4
_PACKED: Final = ".gz"
_MAX_FILES_SHOWN: Final = 3  # files that a sentence names [policy]


@dataclass(frozen=True)
class _File:
    """A file of the run: its name in the archive, its machine, and common time minus its own, ns.

    `clock` is the one that its times are of, None where they are of none. Over the run the clock drifts
    by `drift_ns` to either side.
    """

    name: str
    machine: str
    offset_to_common_ns: int
    drift_ns: int
    clock: str | None


def save(content: Content, target: Path) -> Saved:
    """Write the manifest of the files that the chosen processes were read from.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, Perfetto opens none of the
            files, or names are to be replaced.
    """
    if content.replacements is not None:
        raise InvalidArgument(
            "A manifest names the run's files, so it cannot be without names: leave out --anonymize."
        )
    files = [*_find_files(content)]
    if not files:
        raise InvalidArgument(
            "Perfetto opens none of this run's files (it opens trace events in JSON, and its own): "
            "convert it with --to perfetto, which puts all ranks on one clock."
        )
    reference_file = min(files, key=lambda file: file.offset_to_common_ns)
    alignment = content.trace.alignment
    attributes = {
        "tracelens.alignment": alignment.method,
        "tracelens.uncertainty_ns": alignment.uncertainty_ns,
        "tracelens.drift_ns": max(file.drift_ns for file in files),
    }
    entries = [
        _make_entry(file, reference_file)
        for file in sorted(files, key=lambda file: file is not reference_file)
    ]
    manifest = {"version": 1, "attributes": attributes, "files": entries}
    with open_new_file(target) as draft:
        draft.write_text(json.dumps({"perfetto_manifest": manifest}, indent=2) + "\n", "utf-8")
    return Saved(len(files), size_of(target), notes=(*_make_notes(content, files),))


def _make_entry(file: _File, reference_file: _File) -> dict[str, Any]:
    """Return a file's entry of the manifest, with its clock's offset to the reference file."""
    entry: dict[str, Any] = {"path": file.name, "machine": {"name": file.machine}}
    if file is reference_file:
        return entry
    reference = {"file": reference_file.name}
    if reference_file.clock:
        reference["clock"] = reference_file.clock
    offset_ns = file.offset_to_common_ns - reference_file.offset_to_common_ns
    clocks: dict[str, Any] = {"clock": file.clock} if file.clock else {}
    return entry | {"clocks": clocks | {"sync_to": reference, "offset_ns": offset_ns}}


def _find_files(content: Content) -> Iterator[_File]:
    """Yield the files that Perfetto opens, each once."""
    seen_paths = set()
    for source in content.source_paths:
        prefix = f"{source.name}/" if len(content.source_paths) > 1 and source.is_dir() else ""
        for owner in content.processes.drop_nulls("file").iter_rows(named=True):
            path = source / owner["file"] if source.is_dir() else source
            if path in seen_paths or path.name != owner["file"] or not path.is_file():
                continue
            seen_paths.add(path)
            base_and_clock = _read_times(path)
            if base_and_clock is None:
                continue
            base_ns, clock = base_and_clock
            shift_ns, drift_ns = _measure_shift(content.trace, owner)
            role = "PS" if owner["role"] == "ps" else "rank"
            name = (prefix + owner["file"]).removesuffix(_PACKED)
            machine = f"{role} {owner['rank']}" + (f" ({owner['host']})" if owner["host"] else "")
            yield _File(name, machine, base_ns + shift_ns, drift_ns, clock)


def _read_times(path: Path) -> tuple[int, str | None] | None:
    """Return TraceLens' time minus a file's own, ns, and its clock; None if it is not opened.

    Raises:
        MissingExtra: it is Perfetto's, and protobuf's library is not installed.
    """
    if is_perfetto(path):
        from tracelens.readers.perfetto.reader import read_slices  # noqa: PLC0415 - an extra

        slices = read_slices(path)
        return slices.offset_to_real_ns, _CLOCKS.get(slices.clock_id, "BOOTTIME")
    if not looks_like_events(path):
        return None
    stream = EventStream(path)
    for _ in stream.read_pieces():
        pass
    base = stream.metadata.get("baseTimeNanoseconds")
    return (base if isinstance(base, int) else 0), None


def _measure_shift(trace: Trace, process: dict[str, Any]) -> tuple[int, int]:
    """Return common minus recorded time in mid-process, and its change to either end, ns."""
    clock_map = trace.clock_maps.get(process["process"])
    if clock_map is None:
        return 0, 0
    common_ns = np.array([process["first_ns"] or 0, process["last_ns"] or 0], np.int64)
    recorded_ns = common_ns
    for _ in range(_ROUNDS):
        recorded_ns = common_ns - (clock_map.to_common_ns(recorded_ns) - recorded_ns)
    begin_shift_ns, end_shift_ns = (int(shift) for shift in common_ns - recorded_ns)
    return (begin_shift_ns + end_shift_ns) // 2, abs(end_shift_ns - begin_shift_ns) // 2


def _make_notes(content: Content, files: list[_File]) -> Iterator[str]:
    """Yield a sentence each on packed files, unopened files, and unaligned clocks."""
    read_names = content.processes.drop_nulls("file")["file"].unique()
    packed_names = sorted(name for name in read_names if name.endswith(_PACKED))
    if packed_names:
        yield (
            f"Perfetto relates clocks of plain files alone: decompress {_list_names(packed_names)} "
            "before you merge them."
        )
    opened_names = {file.name.rpartition("/")[2] for file in files}
    other_names = sorted(
        name for name in read_names if name.removesuffix(_PACKED) not in opened_names
    )
    if other_names:
        yield f"Perfetto does not open {_list_names(other_names)}."
    if content.trace.alignment.untied_clock_domains:
        yield "Nothing ties some clocks to the others: their offsets are guesses."


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_FILES_SHOWN} more" if len(names) > _MAX_FILES_SHOWN else ""
    return join_words([f"'{shown_name(name)}'" for name in names[:_MAX_FILES_SHOWN]]) + more
