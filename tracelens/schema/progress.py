"""How far the live segments of a process have become Arrow: one small file beside them.

It is replaced as a whole after each batch is on the disk, and only then are segments removed. So a
conversion that is killed at any moment goes on from the last batch that counts: nothing is lost, and
nothing is there twice.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tracelens.errors import NotATrace
from tracelens.schema.light_json import loads
from tracelens.schema.ownership import NO_LINK

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROGRESS_FILE", "UNFINISHED_FILE", "Held", "Progress", "load_progress", "save_progress"]

PROGRESS_FILE: Final = "progress.json"
UNFINISHED_FILE: Final = "events.unfinished"


class Held(NamedTuple):
    """A slot that is not in the Arrow file yet, because its event may still change.

    `depth` is that of its event, -1 if there is none yet; it waits since `since_ns`, monotonic.
    """

    segment: int
    slot: int
    depth: int
    since_ns: int


@dataclass(frozen=True)
class Progress:
    """The first `length` bytes of the Arrow file hold all segments before `next`, but for `held`.

    `lost` and `thinned` count events that are in neither, by reason and by kind. `latest_ns` is the
    begin of the last row, and `sorted` tells whether no row before it began later.
    """

    length: int = 0
    next: int = 0
    held: tuple[Held, ...] = ()
    lost: dict[str, int] = field(default_factory=dict)
    thinned: dict[str, int] = field(default_factory=dict)
    latest_ns: int = -(2**63)
    sorted: bool = True


def load_progress(folder: Path) -> Progress:
    """Read how far a segments folder has been converted; not at all, where nothing says so.

    Raises:
        NotATrace: what says so is damaged.
    """
    try:
        row = loads((folder / PROGRESS_FILE).read_bytes())
        held = tuple(Held(*map(int, slot)) for slot in row.pop("held"))
        return Progress(held=held, **row)
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATrace(f"{folder / PROGRESS_FILE} is damaged ({error!r})") from error


def save_progress(folder: Path, progress: Progress) -> None:
    """Write down how far a folder has been converted; it is on the disk when this returns.

    Raises:
        OSError: there is no room.
    """
    unfinished = folder / f".{PROGRESS_FILE}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o644)
    try:
        os.write(descriptor, json.dumps(asdict(progress)).encode())
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.replace(folder / PROGRESS_FILE)
