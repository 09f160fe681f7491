"""Trace events in JSON with the members that are read, typed: msgspec skips all others.

Arguments about a collective stay as written until the event is known to be a collective.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# What of an event's arguments is read of every one, by attribute.
_READ: Final = {
    "given_name": "name",  # of a thread or process
    "correlation": "correlation",
    "external": "External id",
    "sequence": "Sequence number",
    "stream": "stream",
    "device": "device",
}
_OF_CALLS: Final = (
    *("Input type", "dtype", "In msg nelems", "Out msg nelems", "Group size"),
    *("Process Group Name", "Process Group ID", "Process Group Description", "Process Group Ranks"),
    *("Global rank start", "Global rank stride", "Src Rank", "Dst Rank"),
    *("Seq", "seq", "Sequence", "Sequence Number", "Rank"),
)
# What it says of a collective.
_ATTRIBUTES: Final = {
    "collective": "Collective name",
    "shapes": "Input Dims",
    **{f"call_{number}": key for number, key in enumerate(_OF_CALLS)},
}
_FIELDS: Final = {**_READ, **_ATTRIBUTES}
_UNSET: Final = msgspec.UNSET
_Raw: Any = msgspec.Raw | msgspec.UnsetType

Arguments: Final[Any] = msgspec.defstruct(
    "Arguments",
    [
        *((name, Any, msgspec.field(name=key, default=None)) for name, key in _READ.items()),
        *(
            (name, _Raw, msgspec.field(name=key, default=_UNSET))
            for name, key in _ATTRIBUTES.items()
        ),
    ],
    gc=False,
)


NO_ARGUMENTS: Final = Arguments()


class Event(msgspec.Struct, gc=False):
    """A trace event; what it does not have is null."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None


_DECODER: Final = msgspec.json.Decoder(list[Event])
_MEMBERS: Final = tuple(name for name in Event.__struct_fields__ if name != "args")


def decode_events(text: bytes) -> list[Event] | None:
    """Decode a list of events; null if it is no JSON, or holds anything that is not shaped as events."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def to_event(event: dict[str, Any]) -> Event:
    """Return an event that was parsed without its types."""
    arguments = event.get("args")
    typed_event = Event(*(event.get(name) for name in _MEMBERS))
    if isinstance(arguments, dict):
        values = {name: arguments[key] for name, key in _FIELDS.items() if key in arguments}
        typed_event.args = Arguments(**values)
    return typed_event


def collective_facts(arguments: Any) -> dict[str, Any]:
    """Return the facts of a collective, by the names that the profile's file gives them.

    `arguments` are the decoded `args` of an event, an attribute for each fact.
    """
    facts = {}
    for name, key in _ATTRIBUTES.items():
        value = getattr(arguments, name)
        if value is not _UNSET:
            facts[key] = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    return facts


def names_collective(arguments: Any) -> bool:
    """Return True if arguments name the collective of an event."""
    return arguments.collective is not _UNSET


def select_communication_arguments(arguments: list[Any], first_row: int) -> list[tuple[int, Any]]:
    """Return arguments that name a collective, or may say how large one is, each with its row number."""
    return [
        (row_number, event_arguments)
        for row_number, event_arguments in enumerate(arguments, first_row)
        if event_arguments.collective is not _UNSET or event_arguments.shapes is not _UNSET
    ]


def merge_arguments(begin_arguments: Any, end_arguments: Any) -> Any:
    """Join the arguments of an event's begin and end; the end's value wins."""
    if begin_arguments is None or end_arguments is None:
        return begin_arguments if end_arguments is None else end_arguments
    values = {}
    for name in _FIELDS:
        value = getattr(end_arguments, name)
        values[name] = getattr(begin_arguments, name) if value is None or value is _UNSET else value
    return Arguments(**values)
