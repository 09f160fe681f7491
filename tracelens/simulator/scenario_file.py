"""Reads a scenario from TOML: `tracelens simulate FILE.toml` (docs/simulate.md).

What a file may hold is one table here; whatever else it holds is refused in one sentence.
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
from tracelens.simulator.algorithms import ALGORITHMS, transfer
from tracelens.simulator.scenario import Fault, FaultPhase, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PRESETS", "SOURCES", "load", "preset", "sources"]

PRESETS: Final = ("resnet50", "hepcnn", "alexnet", "nt3")
SOURCES: Final = ("published (abstract)", "derived", "assumed")
_PLACE: Final = Path(__file__).with_name("presets")

# What each entry of a file is: table, name, the scenario's name for it, type, and the least it may be.
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
    "at": ("at", float, 0),
}
_TYPES: Final = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list of numbers",
}
_MOST: Final = {"noise": 1.0, "spread": 1.0, "common": 1.0, "correlation": 0.999}  # of a share
_LARGEST: Final = 1e15  # of any other number
_WHOLE: Final = ("variables", "buckets", "ranks", "steps")  # lists whose numbers are whole


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
    found = _read(path)
    base = found.pop("preset", None)
    if base is not None:
        found = _merged(preset(base), found)
    for change in changes:
        found = _merged(found, _parsed(change))
    return scenario(found)


def preset(name: Any) -> dict[str, Any]:
    """Return what a preset's file holds."""
    if name not in PRESETS:
        raise InvalidArgument(f"There is no preset '{name}'; presets are {', '.join(PRESETS)}.")
    return tomllib.loads((_PLACE / f"{name}.toml").read_text(encoding="utf-8"))


def sources(name: str) -> dict[str, str]:
    """Return where each number of a preset comes from, by TABLE.NAME."""
    found: dict[str, str] = preset(name)["sources"]
    return found


def scenario(found: Mapping[str, Any]) -> Scenario:
    """Make a scenario of what a file holds."""
    given = {key: value for key, value in found.items() if key not in {"title", "sources"}}
    faults = given.pop("fault", [])
    if not isinstance(faults, list) or not all(isinstance(one, dict) for one in faults):
        raise InvalidArgument("Found 'fault' as something else: write each fault as [[fault]].")
    _known("a scenario", given, {**ENTRIES, "preset": {}, "fault": {}, "title": {}, "sources": {}})
    for table, held in given.items():
        if not isinstance(held, dict):
            raise InvalidArgument(f"Found '{table}' as a value: expected a table, [{table}].")
    if "servers" in given and "allreduce" in given:
        raise InvalidArgument("Found [servers] and [allreduce]: a scenario has one of them.")
    values: dict[str, Any] = {}
    for table, held in given.items():
        values |= _values(table, held, ENTRIES[table])
    values.pop("", None)
    if "message_ms" in values:
        values["message_ms"] /= 1e3
    if "servers" in given:
        values = {"shards": 1, "shared_links": True, "beside_compute": True} | values
        _placement(values)
    else:
        values |= _transfers(given.get("allreduce", {}), values)
    made = Scenario(**values, faults=tuple(map(_fault, faults)))
    _refuse_endless(made)
    return made


def _refuse_endless(made: Scenario) -> None:
    """Refuse a run of more events than a table may have, or of more than a year, by rough sums.

    Raises:
        InvalidArgument: it is too large, or too long.
    """
    pieces = max(made.buckets, made.shards, len(made.variables))
    of_step = 5 + 3 * made.layers + 4 * pieces * (made.ranks if made.hops else 1)
    events = made.ranks * made.steps * of_step
    if events > limit("rows"):
        raise InvalidArgument(
            f"The run would have about {events:,} events: expected at most {limit('rows'):,} "
            "(fewer steps, workers, layers or buckets; '--limit rows=...' raises it)."
        )
    moved = max(sum(made.variables), sum(made.bytes_of_buckets)) / made.link_gbytes_per_s / 1e6
    at_servers = made.ranks * (1 + made.incast * made.ranks) if made.shards else 1
    each_ms = made.message_ms + made.transfer_ms + made.latency_us / 1e3 + made.apply_ms
    step_ms = made.data_ms + made.forward_ms + made.backprop_ms + made.update_ms
    step_ms += at_servers * (moved + pieces * each_ms)
    factor = prod(max(1.0, fault.factor) for fault in made.faults)
    extra_ms = sum(fault.extra_ms for fault in made.faults)
    total_ms = made.steps * (step_ms * factor + extra_ms)
    if total_ms * 1e6 > LONGEST_NS:
        raise InvalidArgument(
            f"The run would last about {total_ms / 1e3:.3g} s: expected less than a year "
            "(fewer steps, shorter times, smaller variables, or a faster network)."
        )


def _placement(values: Mapping[str, Any]) -> None:
    name = values.get("placement", "round_robin")
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise InvalidArgument(f"Found servers.placement = '{name}': expected one of {known}.")
    if values["beside_compute"] and not values.get("variables"):
        raise InvalidArgument(
            "Found no servers.variables: expected the bytes of each variable, in forward order "
            "(or beside_compute = false, for one push a shard)."
        )


def _transfers(held: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return buckets, and what their reductions take by the network and the algorithm."""
    sizes = values.get("bucket_sizes") or (Scenario.bucket_bytes,) * Scenario.buckets
    name = held.get("algorithm", "ring")
    if name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise InvalidArgument(f"Found allreduce.algorithm = '{name}': expected one of {known}.")
    if values.get("hops") and name != "ring":
        raise InvalidArgument("Found allreduce.hops = true: only those of a ring are simulated.")
    usual = Scenario()
    latency_us = values.get("latency_us", usual.latency_us) + 1e3 * values.get("message_ms", 0.0)
    pace = values.get("link_gbytes_per_s", usual.link_gbytes_per_s)
    messages, share = transfer(name, values.get("ranks", usual.ranks))
    mean = sum(sizes) / len(sizes)
    return {
        "buckets": len(sizes),
        "bucket_sizes": tuple(sizes),
        "transfer_ms": share * mean / pace / 1e6,
        "message_ms": messages * latency_us / 1e3,
    }


def _fault(held: Mapping[str, Any]) -> Fault:
    values = _values("fault", held, _FAULT)
    if values.get("phase") not in get_args(FaultPhase):
        known = ", ".join(get_args(FaultPhase))
        raise InvalidArgument(
            f"Found fault.phase = '{values.get('phase')}': expected one of {known}."
        )
    if "steps" in values and len(values["steps"]) != 2:
        raise InvalidArgument("Found fault.steps: expected [first, last].")
    return Fault(**values)


def _values(table: str, held: Mapping[str, Any], entries: Mapping[str, _Entry]) -> dict[str, Any]:
    _known(f"[{table}]", held, entries)
    return {
        entries[key][0]: _value(f"{table}.{key}", value, entries[key])
        for key, value in held.items()
    }


def _value(name: str, value: Any, entry: _Entry) -> Any:
    _, kind, least = entry
    allowed: Any = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise InvalidArgument(f"Found {name} = {value!r}: expected {_TYPES[kind]}.")
    most = _MOST.get(name.rpartition(".")[2], _LARGEST)
    if least is not None and not least <= value <= most:
        raise InvalidArgument(
            f"Found {name} = {value:.6g}: expected at least {least:g} and at most {most:g}."
        )
    if kind is not list:
        return value
    whole = name.rpartition(".")[2] in _WHOLE
    numbers: Any = int if whole else (int, float)
    if not value or not all(
        isinstance(one, numbers) and not isinstance(one, bool) and 0 <= one <= _LARGEST
        for one in value
    ):
        what = "whole numbers" if whole else "numbers"
        raise InvalidArgument(
            f"Found {name} = {value!r:.60}: expected a list of {what} from 0 to {_LARGEST:g}."
        )
    return tuple(value)


def _known(where: str, held: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for key in held:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean '{near[0]}'" if near else f"known are {', '.join(known)}"
            raise InvalidArgument(f"Found '{key}' in {where}, which there is not: {hint}.")


def _read(path: Path) -> dict[str, Any]:
    if str(path) in PRESETS and not path.exists():
        return preset(str(path))
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


def _parsed(change: str) -> dict[str, Any]:
    """Read TABLE.NAME=VALUE; a value that is no TOML is text."""
    name, given, value = change.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (given and dot and key and value.strip()):
        raise InvalidArgument(
            f"--set {change}: expected TABLE.NAME=VALUE, such as run.workers=128."
        )
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        read = value.strip()
    return {table: {key: read}}


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put the tables of one over those of the other; lists and values as wholes."""
    found = dict(base)
    for name, value in changes.items():
        old = found.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        found[name] = {**old, **value} if both and old is not None else value
    return found
