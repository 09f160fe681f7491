"""Copies of remote files in the user's cache, fetched again only when they have changed.

A run has a folder of its own there, with a marker (`tracelens.schema.ownership`): readers, kept reports
and indexes find in it what they find in any trace folder. A file appears under its name when all of it
exists. Where the end of a file is enough, only that is fetched: the copy is as long as the file, and
a hole elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from tracelens.distil import places
from tracelens.errors import UnusableInput
from tracelens.model.fmt import size as in_bytes
from tracelens.remote.address import hide_secrets, hide_user
from tracelens.remote.failures import explain_errors
from tracelens.remote.listing import IN_FLIGHT, RemoteFile, list_files, make_local_name
from tracelens.schema.json_text import loads
from tracelens.schema.ownership import is_ours
from tracelens.schema.vocabulary import SAMPLES_FOLDER, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens.remote.listing import Listing

_FOLDER: Final = "remote-v1"
_STATES: Final = ".fetched.json"
_DRAFT: Final = ".part-"
_MAX_LETTERS_OF_LABEL: Final = 60  # letters of an address that tell a person whose folder it is
# A footer has 24 bytes for each batch of 65,536 events, and names the ranks of communicators: the first
# length holds nearly any, the second those of thousands of ranks in many groups.
_END_SIZES_BYTES: Final = (1 << 16, 1 << 22)
_BEGIN_BYTES: Final = 1 << 10  # of a recording: its magic and the first bytes of its schema


def fetch_copy(
    address: str,
    progress: Callable[[int, int], None] | None = None,
    *,
    is_end_enough: Callable[[Path], bool] | None = None,
) -> Path:
    """Return the copy of a remote trace folder or file, as it is now.

    Args:
        address: Of a trace folder, a file of one, or a table.
        progress: Called with (done, total) files.
        is_end_enough: Returns True for a copy of a recording whose end alone was fetched, if that is
            enough. Without it all files are fetched whole, and so are tables and runs that still record.

    Raises:
        TraceLensError: there is no trace, or it cannot be fetched.
        OSError: the cache cannot be written.
    """
    listing = list_files(address)
    if not listing.is_finished:
        is_end_enough = None
    directory = (
        places.cache_directory()
        / _FOLDER
        / _name_folder(address, has_only_ends=is_end_enough is not None)
    )
    try:
        with places.lock_directory(directory):
            return _update(directory, listing, address, progress, is_end_enough)
    except BlockingIOError:
        raise UnusableInput(
            f"Another process is still fetching '{hide_secrets(address)}': run this again when it "
            "is done."
        ) from None
    except OSError as error:
        if is_ours(directory) or not os.path.lexists(directory):
            raise
        raise UnusableInput(
            f"'{directory}' is where the copy of '{hide_secrets(address)}' belongs, but was not "
            "made here by TraceLens (a cache that was moved?): remove it, and run this again."
        ) from error


def _name_folder(address: str, *, has_only_ends: bool) -> str:
    """Return the name of the folder for an address: readable letters of it, and a digest.

    `has_only_ends` is True if only the ends of files are fetched into it, where that is enough.
    """
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", hide_secrets(address)).strip("-.")[
        :_MAX_LETTERS_OF_LABEL
    ]
    identity = f"{hide_user(address)} {'ends' if has_only_ends else 'whole'}"
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _update(
    directory: Path,
    listing: Listing,
    address: str,
    progress: Callable[[int, int], None] | None,
    is_end_enough: Callable[[Path], bool] | None,
) -> Path:
    """Fetch what changed, remove what is gone, and return the copy of a remote file or folder.

    Args:
        directory: Holds the copy, and nothing else but our drafts and the file of states.
        listing: The files that the address has now.
        address: Of a trace folder, or a file.
        progress: Called with (fetched, outdated) numbers of files.
        is_end_enough: Returns True for a copy of a recording whose end alone was fetched, if that is
            enough. None = fetch all files whole.
    """
    copy = directory / make_local_name(address)
    root = copy if listing.is_folder else directory
    states = _load_states(directory)  # size and version of each copied file, by name
    for draft in directory.glob(f"{_DRAFT}*"):  # of a process that was killed
        draft.unlink()
    for name in states.keys() - {file.name for file in listing.files}:
        _remove(root / name)
        del states[name]
    outdated = [file for file in listing.files if not _is_current(root / file.name, file, states)]
    for file in outdated:
        states.pop(file.name, None)
    # Saved before: a process that is killed leaves nothing that looks current and is not.
    _save_states(directory, states)
    _check_room(directory, outdated, address, may_fetch_ends=is_end_enough is not None)
    try:
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            copies = _Copy(listing.file_system, directory, root, states, is_end_enough)
            for done, _ in enumerate(pool.map(partial(_fetch, copies), enumerate(outdated))):
                if progress:
                    progress(done + 1, len(outdated))
    finally:
        _save_states(directory, states)
    return copy


def _check_room(
    directory: Path, files: list[RemoteFile], address: str, *, may_fetch_ends: bool
) -> None:
    """Refuse to begin with more than the disk has room for, unless ends of files may be enough."""
    needed_bytes = sum(file.size_bytes or 0 for file in files)
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes and not may_fetch_ends:
        raise UnusableInput(
            f"'{hide_secrets(address)}' has {in_bytes(needed_bytes)} to fetch, and the disk of "
            f"'{directory}' has {in_bytes(free_bytes)} left: make room, or name another disk in "
            "XDG_CACHE_HOME."
        )


def _is_current(copy: Path, file: RemoteFile, states: dict[str, str]) -> bool:
    if file.version is None or states.get(file.name) != _describe_state(file):
        return False
    try:
        return file.size_bytes is None or copy.stat().st_size == file.size_bytes
    except OSError:
        return False


@dataclass(frozen=True)
class _Copy:
    """The source and the target of files, and the state (size and version) of each copied one."""

    file_system: Any
    directory: Path
    root: Path
    state_by_name: dict[str, str]
    is_end_enough: Callable[[Path], bool] | None


def _fetch(copy: _Copy, numbered_file: tuple[int, RemoteFile]) -> None:
    """Fetch a file, move it to its name when it is complete, and note its state."""
    number, file = numbered_file
    draft = copy.directory / f"{_DRAFT}{number}"
    try:
        if copy.is_end_enough is None or not _fetch_part(
            copy.file_system, file, draft, copy.is_end_enough
        ):
            _fetch_whole(copy.file_system, file, draft)
        target = copy.root / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(target)
        copy.state_by_name[file.name] = _describe_state(file)
    finally:
        draft.unlink(missing_ok=True)


def _fetch_whole(system: Any, file: RemoteFile, draft: Path) -> None:
    """Fetch a file, and check that all of its bytes arrived."""
    with explain_errors(file.path):
        system.get_file(file.path, str(draft))
    arrived_bytes = draft.stat().st_size
    if file.size_bytes not in (None, arrived_bytes):
        raise UnusableInput(
            f"Of the {file.size_bytes:,} bytes of '{hide_secrets(file.path)}' {arrived_bytes:,} arrived"
            ": it changed, or the server went away; run this again."
        )


def _fetch_part(
    system: Any, file: RemoteFile, draft: Path, is_end_enough: Callable[[Path], bool]
) -> bool:
    """Fetch a recording's end, or the begin of stack samples; return True if that is enough.

    For a recording `is_end_enough` decides, which reads the draft: a hole, and its end.
    """
    if file.size_bytes is None or not file.name.endswith(TRACE_SUFFIX):
        return False
    if file.name.startswith(f"{SAMPLES_FOLDER}/"):
        return file.size_bytes > _END_SIZES_BYTES[-1] and _copy_parts(
            system, file, draft, [(0, _END_SIZES_BYTES[-1])]
        )
    for length in _END_SIZES_BYTES:
        if file.size_bytes <= length + _BEGIN_BYTES:
            return False
        parts = [(file.size_bytes - length, length), (0, _BEGIN_BYTES)]
        if not _copy_parts(system, file, draft, parts):
            return False
        if is_end_enough(draft):
            return True
    return False


def _copy_parts(system: Any, file: RemoteFile, draft: Path, parts: list[tuple[int, int]]) -> bool:
    """Copy parts, (offset, length); return False if the server does not send parts."""
    with draft.open("wb") as copy, explain_errors(file.path):
        copy.truncate(file.size_bytes)
        try:
            with system.open(file.path, "rb", cache_type="none") as source:
                return all(_copy_part(source, copy, *part) for part in parts)
        except ValueError:  # what fsspec raises for a web server without ranges
            return False


def _copy_part(source: Any, copy: BinaryIO, offset: int, length: int) -> bool:
    source.seek(offset)
    content = source.read(length)
    copy.seek(offset)
    copy.write(content)
    return len(content) == length


def _remove(copy: Path) -> None:
    """Remove a file, and its folder if nothing is left in it, for it would be taken as a recording."""
    copy.unlink(missing_ok=True)
    with suppress(OSError):
        copy.parent.rmdir()


def _describe_state(file: RemoteFile) -> str:
    return f"{file.size_bytes} {file.version}"


def _load_states(directory: Path) -> dict[str, str]:
    """Load the state (size and version) of each copied file, by name."""
    try:
        states = loads((directory / _STATES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return states if isinstance(states, dict) else {}


def _save_states(directory: Path, states: dict[str, str]) -> None:
    draft = directory / f"{_DRAFT}states"
    draft.write_text(json.dumps(states), encoding="utf-8")
    draft.replace(directory / _STATES)
