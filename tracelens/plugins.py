"""Readers and analyses of other distributions, which name them as entry points (docs/plugins.md).

Nothing is imported to find out that none exist: files of installed distributions are looked through
for the names of the groups, which takes a few milliseconds once a process.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import UnusableInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["ANALYSES", "READERS", "Plugin", "list_plugins"]

READERS: Final = "tracelens.readers"
ANALYSES: Final = "tracelens.analyses"
_ENDS: Final = (".dist-info", ".egg-info")
_FILE: Final = "entry_points.txt"
_SECTION: Final = b"[tracelens."


@dataclass(frozen=True)
class Plugin:
    """An entry point: its name, what it names, and which distribution brought it."""

    name: str
    object_reference: str
    distribution: str
    entry_point: EntryPoint

    def load(self) -> Any:
        """Import the object that it names.

        Raises:
            UnusableInput: the import fails, for any reason.
        """
        try:
            return self.entry_point.load()
        except Exception as error:  # code of others may raise anything while it is imported
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise UnusableInput(
                f"'{self.name}' of {self.distribution} cannot be imported ({reason}): install a version "
                "of it that fits, or uninstall it."
            ) from error


def list_plugins(group: str) -> tuple[Plugin, ...]:
    """Return the entry points of a group, in order of name."""
    if not _is_any_mentioned(tuple(sys.path)):
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - few have any, and it takes long

    plugins = [
        Plugin(entry.name, entry.value, _name_distribution(entry), entry)
        for entry in entry_points(group=group)
    ]
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution)))


def _name_distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


@lru_cache(8)
def _is_any_mentioned(places: tuple[str, ...]) -> bool:
    """Return True if an installed distribution has entry points for TraceLens."""
    return any(
        _mentions(folder) for place in dict.fromkeys(places) for folder in _list_infos(place)
    )


def _list_infos(place: str) -> list[str]:
    """Return the folders about distributions at a place that modules are imported from."""
    try:
        with os.scandir(place or ".") as entries:
            return [entry.path for entry in entries if entry.name.endswith(_ENDS)]
    except OSError:  # an archive, or not there
        return []


def _mentions(folder: str) -> bool:
    try:
        return _SECTION in Path(folder, _FILE).read_bytes()
    except OSError:
        return False
