"""Reads a scenario from TOML: `tracelens simulate FILE.toml` (docs/simulate.md).

`ENTRIES` lists all entries that a file may have; other entries are refused in one sentence.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from tracelens.errors import InvalidArgument, TraceNotFound, UnusableInput
from tracelens.model.fmt import shown_name
from tracelens.placement import STRATEGIES
from tracelens.schema.gate import limit
from tracelens.schema.rules import LONGEST_NS
from tracelens.simulator.algorithms import ALGORITHMS, count_messages_and_payloads
from tracelens.simulator.scenario import Fault, FaultPhase, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRESETS: Final = ("resnet50", "hepcnn", "alexnet", "nt3")
SOURCES: Final = ("published (abstract)", "derived", "assumed")
_PRESET_FOLDER: Final = Path(__file__).with_name("presets")

# What an entry of a file is: the scenario's name for it, its type, and the least it may be (None = any).
_Entry = tuple[str, type, float | None]
ENTRIES: Final[dict[str, dict[str, _Entry]]] = {
    "run": {
        "workers": ("ranks", int, 1),
        "workers_per_host": ("ranks_per_host", int, 1),
        "steps": ("steps", int, 1),
        "seed": ("seed", int, 0),
        "samples": ("samples", float, 0),
    },
    "compute": {
        "data_ms": ("data_ms", float, 0),
        "forward_ms": ("forward_ms", float, 0),
        "backprop_ms": ("backprop_ms", float, 0),
        "update_ms": ("update_ms", float, 0),
        "noise": ("noise", float, 0),
        "correlation": ("correlation", float, 0),
        "spread": ("spread", float, 0),
        "common": ("common", float, 0),
        "layers": ("layers", int, 1),
    },
    "network": {
        "gbytes_per_s": ("link_gbytes_per_s", float, 1e-9),
        "latency_us": ("latency_us", float, 0),
        "message_us": ("message_ms", float, 0),
    },
    "servers": {
        "shards": ("shards", int, 1),
        "variables": ("variables", list, None),
        "work": ("work", list, None),
        "placement": ("placement", str, None),
        "beside_compute": ("beside_compute", bool, None),
        "shared_links": ("shared_links", bool, None),
        "incast": ("incast", float, 0),
        "apply_ms": ("apply_ms", float, 0),
        "aggregate_gbytes_per_s": ("aggregate_gbytes_per_s", float, 1e-9),
    },
    "allreduce": {
        "algorithm": ("", str, None),
        "buckets": ("bucket_sizes", list, None),
        "ready": ("bucket_ready", list, None),
        "overlap": ("overlap", bool, None),
        "hops": ("hops", bool, None),
    },
}
_FAULT: Final[dict[str, _Entry]] = {
    "phase": ("phase", str, None),
    "ranks": ("ranks", list, None),
    "steps": ("steps", list, None),
    "factor": ("factor", float, 0),
    "extra_ms": ("extra_ms", float, 0),
    "every": ("every", int, 1),
    "ramp": ("ramp", bool, None),
    "at": ("pause_share", float, 0),
}
_TYPES: Final = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list of numbers",
}
_MAX_SHARES: Final = {"noise": 1.0, "spread": 1.0, "common": 1.0, "correlation": 0.999}
_MAX_NUMBER: Final = 1e15  # of any other entry
_WHOLE_LISTS: Final = ("variables", "buckets", "ranks", "steps")  # lists whose numbers are whole


def load(path: Path, changes: Iterable[str] = ()) -> Scenario:
    """Read a scenario.

    Args:
        path: A TOML file, or the name of a preset (`PRESETS`).
        changes: What to set otherwise, such as ``run.workers=128``.

    Raises:
        TraceNotFound: there is no such file, and no such preset.
        UnusableInput: it is no TOML.
        InvalidArgument: it holds something that no scenario has, or that cannot be simulated.
    """
    document = _read(path)
    preset_name = document.pop("preset", None)
    if preset_name is not None:
        document = _merge(load_preset(preset_name), document)
    for change in changes:
        document = _merge(document, _parse_change(change))
    return make_scenario(document)


def load_preset(name: Any) -> dict[str, Any]:
    """Load the tables of a preset's file."""
    if name not in PRESETS:
        raise InvalidArgument(f"There is no preset '{name}'; presets are {', '.join(PRESETS)}.")
    return tomllib.loads((_PRESET_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def read_sources(name: str) -> dict[str, str]:
    """Return the source of each number of a preset, by TABLE.NAME."""
    sources_by_entry: dict[str, str] = load_preset(name)["sources"]
    return sources_by_entry


def make_scenario(document: Mapping[str, Any]) -> Scenario:
    """Make a scenario from the tables of a file."""
    tables = {key: value for key, value in document.items() if key not in {"title", "sources"}}
    faults = tables.pop("fault", [])
    if not isinstance(faults, list) or not all(isinstance(fault, dict) for fault in faults):
        raise InvalidArgument("Found 'fault' as something else: write each fault as [[fault]].")
    _check_names(
        "a scenario", tables, {**ENTRIES, "preset": {}, "fault": {}, "title": {}, "sources": {}}
    )
    for table, entries in tables.items():
        if not isinstance(entries, dict):
            raise InvalidArgument(f"Found '{table}' as a value: expected a table, [{table}].")
    if "servers" in tables and "allreduce" in tables:
        raise InvalidArgument("Found [servers] and [allreduce]: a scenario has one of them.")
    values: dict[str, Any] = {}  # arguments of `Scenario`
    for table, entries in tables.items():
        values |= _parse_entries(table, entries, ENTRIES[table])
    values.pop("", None)  # the algorithm, which only `_derive_transfers` needs
    if "message_ms" in values:  # it was read in microseconds
        values["message_ms"] /= 1e3
    if "servers" in tables:
        values = {"shards": 1, "shared_links": True, "beside_compute": True} | values
        _check_placement(values)
    else:
        values |= _derive_transfers(tables.get("allreduce", {}), values)
    run = Scenario(**values, faults=tuple(map(_make_fault, faults)))
    _refuse_endless(run)
    return run


def _refuse_endless(run: Scenario) -> None:
    """Refuse a run with too many events, or longer than a year, by rough sums.

    Raises:
        InvalidArgument: it is too large, or too long.
    """
    message_count = max(run.buckets, run.shards, len(run.variables))
    events_per_step = 5 + 3 * run.layers + 4 * message_count * (run.ranks if run.hops else 1)
    events = run.ranks * run.steps * events_per_step
    if events > limit("rows"):
        raise InvalidArgument(
            f"The run would have about {events:,} events: expected at most {limit('rows'):,} "
            "(fewer steps, workers, layers or buckets; '--limit rows=...' raises it)."
        )
    transfer_ms = max(sum(run.variables), sum(run.bytes_of_buckets)) / run.link_gbytes_per_s / 1e6
    server_factor = run.ranks * (1 + run.incast * run.ranks) if run.shards else 1
    message_ms = run.message_ms + run.transfer_ms + run.latency_us / 1e3 + run.apply_ms
    step_ms = run.data_ms + run.forward_ms + run.backprop_ms + run.update_ms
    step_ms += server_factor * (transfer_ms + message_count * message_ms)
    fault_factor = prod(max(1.0, fault.factor) for fault in run.faults)
    fault_ms = sum(fault.extra_ms for fault in run.faults)
    total_ms = run.steps * (step_ms * fault_factor + fault_ms)
    if total_ms * 1e6 > LONGEST_NS:
        raise InvalidArgument(
            f"The run would last about {total_ms / 1e3:.3g} s: expected less than a year "
            "(fewer steps, shorter times, smaller variables, or a faster network)."
        )


def _check_placement(values: Mapping[str, Any]) -> None:
    """Refuse arguments of `Scenario` that place variables in no known way, or none at all."""
    name = values.get("placement", "round_robin")
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise InvalidArgument(f"Found servers.placement = '{name}': expected one of {known}.")
    if values["beside_compute"] and not values.get("variables"):
        raise InvalidArgument(
            "Found no servers.variables: expected the bytes of each variable, in forward order "
            "(or beside_compute = false, for one push a shard)."
        )


def _derive_transfers(entries: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `Scenario`: buckets, and the times of their reductions.

    `entries` are those of [allreduce]; `values`, arguments so far, state the network.
    """
    bucket_bytes = values.get("bucket_sizes") or (Scenario.bucket_bytes,) * Scenario.buckets
    name = entries.get("algorithm", "ring")
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise InvalidArgument(f"Found allreduce.algorithm = '{name}': expected one of {known}.")
    if values.get("hops") and name != "ring":
        raise InvalidArgument("Found allreduce.hops = true: only those of a ring are simulated.")
    defaults = Scenario()
    latency_us = values.get("latency_us", defaults.latency_us) + 1e3 * values.get("message_ms", 0.0)
    gbytes_per_s = values.get("link_gbytes_per_s", defaults.link_gbytes_per_s)
    rank_count = values.get("ranks", defaults.ranks)
    message_count, payload_count = count_messages_and_payloads(name, rank_count)
    mean_bytes = sum(bucket_bytes) / len(bucket_bytes)
    return {
        "buckets": len(bucket_bytes),
        "bucket_sizes": tuple(bucket_bytes),
        "transfer_ms": payload_count * mean_bytes / gbytes_per_s / 1e6,
        "message_ms": message_count * latency_us / 1e3,
    }


def _make_fault(entries: Mapping[str, Any]) -> Fault:
    """Make a fault from the entries of a [[fault]] table."""
    values = _parse_entries("fault", entries, _FAULT)
    if values.get("phase") not in get_args(FaultPhase):
        known = ", ".join(get_args(FaultPhase))
        raise InvalidArgument(
            f"Found fault.phase = '{values.get('phase')}': expected one of {known}."
        )
    if "steps" in values and len(values["steps"]) != 2:
        raise InvalidArgument("Found fault.steps: expected [first, last].")
    return Fault(**values)


def _parse_entries(
    table: str, written: Mapping[str, Any], known_entries: Mapping[str, _Entry]
) -> dict[str, Any]:
    """Check the entries of a table; return their values by the names of `Scenario`."""
    _check_names(f"[{table}]", written, known_entries)
    names = {key: name for key, (name, _, _) in known_entries.items()}
    return {
        names[key]: _check_value(f"{table}.{key}", value, known_entries[key])
        for key, value in written.items()
    }


def _check_value(name: str, value: Any, entry: _Entry) -> Any:
    """Check the value of the entry `name`, as TABLE.NAME, and return it; lists become tuples."""
    _, kind, min_value = entry
    allowed_types: Any = (int, float) if kind is float else kind
    if not isinstance(value, allowed_types) or (kind is not bool and isinstance(value, bool)):
        raise InvalidArgument(f"Found {name} = {value!r}: expected {_TYPES[kind]}.")
    max_value = _MAX_SHARES.get(name.rpartition(".")[2], _MAX_NUMBER)
    if min_value is not None and not min_value <= value <= max_value:
        raise InvalidArgument(
            f"Found {name} = {value:.6g}: expected at least {min_value:g} and at most {max_value:g}."
        )
    if kind is not list:
        return value
    is_whole = name.rpartition(".")[2] in _WHOLE_LISTS
    number_types: Any = int if is_whole else (int, float)
    if not value or not all(
        isinstance(number, number_types)
        and not isinstance(number, bool)
        and 0 <= number <= _MAX_NUMBER
        for number in value
    ):
        noun = "whole numbers" if is_whole else "numbers"
        raise InvalidArgument(
            f"Found {name} = {value!r:.60}: expected a list of {noun} from 0 to {_MAX_NUMBER:g}."
        )
    return tuple(value)


def _check_names(where: str, entries: Mapping[str, Any], known_entries: Mapping[str, Any]) -> None:
    """Refuse entries of an unknown name; `where` names the table in the sentence."""
    for key in entries:
        if key not in known_entries:
            close = get_close_matches(str(key), known_entries, 1)
            known = ", ".join(known_entries)
            hint = f"did you mean '{close[0]}'" if close else f"known are {known}"
            raise InvalidArgument(f"Found '{key}' in {where}, which there is not: {hint}.")


def _read(path: Path) -> dict[str, Any]:
    """Read the tables of a scenario's file, or those of the preset that `path` names."""
    if str(path) in PRESETS and not path.exists():
        return load_preset(str(path))
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceNotFound(
            f"There is no file '{shown_name(path)}': expected a scenario in TOML, or one of the presets "
            f"{', '.join(PRESETS)}."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(f"'{shown_name(path)}' is no TOML: {error}.") from None
    except RecursionError:
        raise UnusableInput(f"'{shown_name(path)}' is nested too deep for a scenario.") from None


def _parse_change(change: str) -> dict[str, Any]:
    """Parse TABLE.NAME=VALUE into a document with this one entry; what is no TOML is text."""
    name, equals, value = change.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and key and value.strip()):
        raise InvalidArgument(
            f"--set {change}: expected TABLE.NAME=VALUE, such as run.workers=128."
        )
    try:
        parsed_value = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed_value = value.strip()
    return {table: {key: parsed_value}}


def _merge(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the changes' tables put over its own; lists and values as wholes."""
    merged = dict(document)
    for name, value in changes.items():
        base_value = merged.get(name)
        are_tables = isinstance(base_value, dict) and isinstance(value, dict)
        merged[name] = {**base_value, **value} if are_tables and base_value is not None else value
    return merged
