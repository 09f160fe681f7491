"""Prints the events of an OTF2 archive as columns; a process of its own, which imports no package.

What ends OTF2's library, or has it use too much memory or time, ends only this process.

Usage: unpack.py ANCHOR BYTES SECONDS EVENTS. On standard output: a line of JSON (`definitions`, below),
then the columns of `SPANS`, then those of `OPERATIONS`, each as 64-bit integers. With exit code 1 it is
the reason why there is nothing.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

SPANS = ("location", "region", "begin", "end")
# `code`: its index in CODES; `root` is a rank within `comm`, as is the peer of a message; `span` is the
# row of the span in which it happened. -1 = none, as for times.
OPERATIONS = ("location", "code", "time", "comm", "root", "tag", "bytes", "request", "span", "op")
# Facts of the events, in the library's order; of the bytes sent and received the larger number counts.
CODES = {
    "MpiSend": ("root", "comm", "tag", "bytes"),
    "MpiRecv": ("root", "comm", "tag", "bytes"),
    "MpiIsend": ("root", "comm", "tag", "bytes", "request"),
    "MpiIsendComplete": ("request",),
    "MpiIrecvRequest": ("request",),
    "MpiIrecv": ("root", "comm", "tag", "bytes", "request"),
    "MpiCollectiveEnd": ("op", "comm", "root", "sent", "bytes"),
    "NonBlockingCollectiveRequest": ("request",),
    "NonBlockingCollectiveComplete": ("op", "comm", "root", "sent", "bytes", "request"),
}
NO_LIBRARY = 2  # the exit code
BATCH = 1 << 16
_MASK = (1 << 63) - 1
_SETTER = re.compile(r"GlobalEvtReaderCallbacks_Set(\w+)Callback$")


class TooMany(Exception):
    """There are more events than may be held."""


class Events:
    """Notes of events; times are ticks since `first_tick`."""

    def __init__(self, first_tick: int) -> None:
        """Begin with nothing."""
        self.first_tick = first_tick
        self.counts: Counter[str] = Counter()
        self.spans = {name: array("q") for name in SPANS}
        self.operations = {name: array("q") for name in OPERATIONS}
        self.unpaired_count = 0
        self._open_rows_by_location: dict[int, list[int]] = {}

    def callbacks(self, names: list[str]) -> dict[str, Any]:
        """Return the callback for each type of event."""
        counters = {name: self._make_counter(name) for name in names}
        recorded = {name: self._make_recorder(name) for name in CODES if name in counters}
        return counters | recorded | {"Enter": self._enter, "Leave": self._leave}

    def _make_counter(self, name: str) -> Any:
        def count(*_: Any) -> None:
            self.counts[name] += 1

        return count

    def _ticks(self, time: int) -> int:
        return min(max(int(time) - self.first_tick, -_MASK), _MASK)

    def _enter(self, location: int, time: int, _user: Any, _more: Any, region: int) -> None:
        """Open a span at a location; its end is -1 until it ends."""
        row = len(self.spans["begin"])
        cells = {"location": location, "region": region, "begin": self._ticks(time), "end": -1}
        for name, column in self.spans.items():
            column.append(cells[name])
        self._open_rows_by_location.setdefault(location, []).append(row)
        self.counts["Enter"] += 1

    def _leave(self, location: int, time: int, _user: Any, _more: Any, region: int) -> None:
        """Close the innermost open span of a region, and with it those that it encloses."""
        self.counts["Leave"] += 1
        open_rows, regions = self._open_rows_by_location.get(location, []), self.spans["region"]
        if all(regions[row] != region for row in reversed(open_rows)):
            self.unpaired_count += 1
            return
        while regions[open_rows[-1]] != region:  # what it encloses ends no later
            self.spans["end"][open_rows.pop()] = self._ticks(time)
            self.unpaired_count += 1
        self.spans["end"][open_rows.pop()] = self._ticks(time)

    def _make_recorder(self, code: str) -> Any:
        """Return the callback that notes a message, a request or a collective; -1: no number."""
        field_names, code_index = CODES[code], [*CODES].index(code)

        def note_operation(location: int, time: int, _user: Any, _more: Any, *values: Any) -> None:
            """Append an event of an operation, in the innermost open span; -1 is no value."""
            self.counts[code] += 1
            open_rows = self._open_rows_by_location.get(location)
            cells = dict(zip(field_names, map(_number, values), strict=True))
            cells["bytes"] = max(cells.get("bytes", -1), cells.pop("sent", -1))
            cells |= {"location": location, "code": code_index, "time": self._ticks(time)}
            cells["span"] = open_rows[-1] if open_rows else -1
            for name, column in self.operations.items():
                column.append(min(cells.get(name, -1), _MASK))

        return note_operation


def _number(value: Any) -> int:
    """Return a number, also of a value of one of the library's enumerations."""
    return int(getattr(value, "value", value))


def read_events(reader: Any, anchor: str, max_events: int) -> tuple[Events, int]:
    """Read all events, in order of time; return them, and how many there are.

    Locations whose file is missing are passed over.

    Raises:
        TooMany: there are more than `max_events`.
    """
    import _otf2  # noqa: PLC0415 - an extra

    handle, definitions = reader.handle, reader.definitions
    folder = Path(anchor).with_suffix("")
    numbers = (location._ref for location in definitions.locations)  # noqa: SLF001 - its only name
    locations = [number for number in numbers if (folder / f"{number}.evt").exists()]
    for location in locations:
        _otf2.Reader_SelectLocation(handle, location)
    has_local_definitions = _succeeds(_otf2.Reader_OpenDefFiles, handle)
    _otf2.Reader_OpenEvtFiles(handle)
    for location in locations:
        # Local definitions say how a location's numbers and its clock relate to those of all.
        if has_local_definitions and (local := _otf2.Reader_GetDefReader(handle, location)):
            _otf2.Reader_ReadAllLocalDefinitions(handle, local)
            _otf2.Reader_CloseDefReader(handle, local)
        _otf2.Reader_GetEvtReader(handle, location)
    if has_local_definitions:
        _otf2.Reader_CloseDefFiles(handle)
    event_reader = _otf2.Reader_GetGlobalEvtReader(handle)
    events = Events(definitions.clock_properties.global_offset)
    callback_table = _otf2.GlobalEvtReaderCallbacks_New()
    event_types = [match[1] for event_type in dir(_otf2) if (match := _SETTER.match(event_type))]
    for event_type, callback in events.callbacks(event_types).items():
        set_callback = getattr(_otf2, f"GlobalEvtReaderCallbacks_Set{event_type}Callback")
        set_callback(callback_table, callback)
    _otf2.GlobalEvtReader_SetCallbacks(event_reader, callback_table, None)
    event_count, batch_count = 0, BATCH
    while batch_count == BATCH:
        batch_count = _otf2.GlobalEvtReader_ReadEvents(event_reader, BATCH)
        event_count += batch_count
        if event_count > max_events:
            raise TooMany
    return events, event_count


def _succeeds(call: Any, handle: Any) -> bool:
    """Return True if a call raised nothing: archives may have no local definitions."""
    import _otf2  # noqa: PLC0415 - an extra

    try:
        call(handle)
    except _otf2.Error:
        return False
    return True


def describe_definitions(definitions: Any) -> dict[str, Any]:
    """Return the definitions that the rows need, as plain values."""
    clock = definitions.clock_properties
    return {
        "resolution": clock.timer_resolution,
        "realtime": getattr(clock, "realtime_timestamp", None),
        "locations": [
            [place._ref, place.name, _text(place.type), place.group._ref, place.number_of_events]  # noqa: SLF001
            for place in definitions.locations
        ],
        "location_groups": [
            [group._ref, group.name, _text(group.location_group_type), _host(group), _maker(group)]  # noqa: SLF001
            for group in definitions.location_groups
        ],
        "regions": [
            [region._ref, region.name, _text(region.paradigm), _text(region.region_role)]  # noqa: SLF001
            for region in definitions.regions
        ],
        "communicators": [[comm._ref, comm.name, _members(comm)] for comm in definitions.comms],  # noqa: SLF001
        "mpi_locations": _find_mpi_locations(definitions),
    }


def _text(value: Any) -> str:
    """Return the name of a value of one of the library's enumerations."""
    return str(value).rpartition(".")[2]


def _host(group: Any) -> str:
    """Return the name of the node that a process ran on: the nearest that is called one."""
    parent = getattr(group, "system_tree_parent", None)
    names: list[str] = []
    while parent is not None and len(names) < 64:
        if str(getattr(parent, "class_name", "")).casefold() == "node":
            return str(parent.name)
        names.append(str(parent.name))
        parent = getattr(parent, "parent", None)
    return names[0] if names else ""


def _maker(group: Any) -> int | None:
    maker = getattr(group, "creating_location_group", None)
    return None if maker is None else maker._ref  # noqa: SLF001


def _members(comm: Any) -> list[int]:
    group = getattr(comm, "group", None)
    members = getattr(group, "members", None) or ()
    return [getattr(member, "_ref", -1) for member in members]


def _find_mpi_locations(definitions: Any) -> list[int]:
    """Return the locations of MPI's ranks, in order; empty where there is no MPI."""
    for group in definitions.groups:
        if _text(group.group_type) == "COMM_LOCATIONS" and _text(group.paradigm) == "MPI":
            return [getattr(member, "_ref", -1) for member in group.members]
    return []


def limit_memory(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit this process to some memory and CPU time, or to less if its parent has less."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    new_limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: cpu_seconds}
    for resource_type, limit in new_limits.items():
        soft, hard = resource.getrlimit(resource_type)
        limits = [value for value in (limit, soft, hard) if value != resource.RLIM_INFINITY]
        resource.setrlimit(resource_type, (min(limits), hard))


def main(anchor: str, memory: str, seconds: str, max_events: str) -> int:
    """Print everything, or, with 1, the reason why there is nothing."""
    limit_memory(int(memory), int(seconds))
    try:
        import otf2  # noqa: PLC0415 - an extra

        with otf2.reader.open(anchor) as reader:
            definitions = describe_definitions(reader.definitions)
            events, event_count = read_events(reader, anchor, int(max_events))
            facts = {
                "count_by_event_type": dict(events.counts),
                "unpaired_count": events.unpaired_count,
                "event_count": event_count,
                "span_count": len(events.spans["begin"]),
                "operation_count": len(events.operations["time"]),
            }
            facts_line = json.dumps(definitions | facts)
    except TooMany:
        sys.stdout.write(
            f"it has more than {max_events} events ('--limit rows=...' raises the limit)"
        )
        return 1
    except ModuleNotFoundError:
        return NO_LIBRARY
    except Exception as error:  # noqa: BLE001 - damaged files raise whatever they like
        sys.stdout.write(f"{type(error).__name__}: {error}"[:500])
        return 1
    output = sys.stdout.buffer
    output.write(facts_line.encode("utf-8", "replace") + b"\n")
    for column in (*events.spans.values(), *events.operations.values()):
        output.write(memoryview(column))
    output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
