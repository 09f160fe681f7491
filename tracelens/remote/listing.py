"""Which files a remote trace has: their names, sizes and versions, without reading one of them.

Only names that a trace folder may have (docs/format.md) are taken from a listing, so that nothing else
is fetched, and no name leads out of the folder that it is fetched into.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import EmptyTrace, InvalidArgument, MissingExtra, TraceNotFound
from tracelens.remote.address import (
    get_scheme,
    hide_secrets,
    is_pattern,
    is_web,
    is_within,
    last_name,
)
from tracelens.remote.failures import explain_errors
from tracelens.schema.vocabulary import (
    ELSEWHERE_SUFFIX,
    SAMPLES_FOLDER,
    SEGMENTS_SUFFIX,
    TRACE_SUFFIX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# requests: they wait for the network, not for a core; web servers allow some dozens
IN_FLIGHT: Final = 16
_OURS: Final = ("s3", "s3a", "http", "https")  # whose libraries the extra has
_TABLES: Final = (TRACE_SUFFIX, ".feather", ".parquet", ".csv", ".tsv")
_NAME: Final = re.compile(r"[^.\x00-\x1f/\\:][^\x00-\x1f/\\:]*")
_NO_NAME: Final = re.compile(r"^\.+|[\x00-\x1f/\\:]")
# bytes: file systems allow 255, and a file that is on its way has a longer name
_MAX_NAME_BYTES: Final = 200
# What says that a file has other content than before, as each protocol calls it; the surest first.
_VERSIONS: Final = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "crc32c"),
    *("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modify"),
)
_CONNECT_S: Final = 30  # to a web server; each further read may take as long as _READ_S
_READ_S: Final = 120


@dataclass(frozen=True)
class RemoteFile:
    """One file; where its server says no version, it has to be fetched each time."""

    name: str  # below the trace folder, such as samples/worker-00000-42.arrow
    path: str  # as its file system calls it
    size_bytes: int | None
    version: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a trace folder, or a single one."""

    file_system: Any  # of fsspec
    files: tuple[RemoteFile, ...]
    is_folder: bool

    @property
    def is_finished(self) -> bool:
        """Return True if all files are Arrow files, as those of a recording that has ended."""
        return all(file.name.endswith(TRACE_SUFFIX) for file in self.files)


def list_files(address: str) -> Listing:
    """List what a trace folder may hold, or a single file.

    Raises:
        TraceNotFound: there is nothing.
        EmptyTrace: there is a folder, but no recording in it.
        TraceLensError: its server cannot be asked, or refuses.
    """
    system, path = _find_system(address)
    with explain_errors(address):
        system.invalidate_cache()
        facts = system.info(path)
        if not _is_folder(facts, address):
            return Listing(system, (_make_file(make_local_name(address), facts),), is_folder=False)
        entries = _list_entries(system, path)
        files = _list_trace(system, entries)
    if not files:
        raise _build_empty_error(address, entries)
    return Listing(system, tuple(files), is_folder=True)


def list_matching(pattern: str) -> list[str]:
    """Return the addresses that match a pattern, in order of name; an address without wildcards alone.

    Raises:
        TraceNotFound: nothing does.
        TraceLensError: its server cannot be asked, or refuses.
    """
    if not is_pattern(pattern):
        return [pattern]
    system, path = _find_system(pattern)
    with explain_errors(pattern):
        system.invalidate_cache()
        # With a slash at its end fsspec finds no folder of a web server.
        names = system.glob(path.rstrip("/") if is_web(pattern) else path)
    if not names:
        raise TraceNotFound(f"Nothing matches '{hide_secrets(pattern)}': check the pattern.")
    return [system.unstrip_protocol(name) for name in sorted(names)]


def _find_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and what it is called there."""
    scheme = get_scheme(address)
    try:
        from fsspec import get_filesystem_class  # noqa: PLC0415 - an extra
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra

        get_filesystem_class(scheme)
        options = _system_options(address)
    except ImportError as error:
        if scheme in _OURS or (error.name or "").partition(".")[0] == "fsspec":
            raise MissingExtra.from_extra(f"Reading {scheme}:// addresses", "remote") from error
        raise MissingExtra(
            f"Reading {scheme}:// addresses needs another library: {str(error).rstrip('.')}."
        ) from error
    except ValueError:
        raise InvalidArgument(
            f"'{hide_secrets(address)}' is of the unknown protocol '{scheme}': expected a path, or "
            "an address such as s3://BUCKET/RUN or https://HOST/FILE (docs/remote.md)."
        ) from None
    with explain_errors(address):
        system_and_path: tuple[Any, str] = url_to_fs(address, **options)
        return system_and_path


def _system_options(address: str) -> dict[str, Any]:
    """Return options of a file system: web servers may take their time for a large file."""
    if not is_web(address):
        return {}
    import aiohttp  # noqa: PLC0415 - an extra

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
    return {"client_kwargs": {"timeout": timeout}}


def _is_folder(facts: Mapping[str, Any], address: str) -> bool:
    """Return True for a folder; on a web server, for a page that lists files."""
    if is_web(address):
        is_page = facts.get("mimetype") == "text/html"
        return is_page and not last_name(address).casefold().endswith(_TABLES)
    return bool(facts["type"] == "directory")


def _list_entries(system: Any, folder: str) -> dict[str, Mapping[str, Any]]:
    """List the entries of a folder by name, without names that no file can have here."""
    facts_by_name = {
        last_name(str(facts["name"])): facts
        for facts in system.ls(folder, detail=True)
        if is_within(str(facts["name"]), folder)
    }
    return {name: facts_by_name[name] for name in sorted(facts_by_name) if _is_name(name)}


def make_local_name(address: str) -> str:
    """Return the local name for the last part of an address."""
    return _NO_NAME.sub("_", last_name(address))[-_MAX_NAME_BYTES // 4 :] or "trace"


def _is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and len(name.encode(errors="replace")) <= _MAX_NAME_BYTES


def _list_trace(system: Any, entries: Mapping[str, Mapping[str, Any]]) -> list[RemoteFile]:
    """Describe the files that a trace folder has, those in its folders included."""
    files = [
        (name, facts)
        for name, facts in entries.items()
        if name.endswith((TRACE_SUFFIX, ELSEWHERE_SUFFIX))
    ]
    converted = {name.removesuffix(TRACE_SUFFIX) for name in entries if name.endswith(TRACE_SUFFIX)}
    folders = [
        (name, facts)
        for name, facts in entries.items()
        if name == SAMPLES_FOLDER
        or (name.endswith(SEGMENTS_SUFFIX) and name.removesuffix(SEGMENTS_SUFFIX) not in converted)
    ]
    if not files and all(name == SAMPLES_FOLDER for name, _ in folders):
        return []
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for inner_files in pool.map(partial(_list_folder, system), folders):
            files += inner_files
        return list(pool.map(partial(_describe_file, system), files))


def _list_folder(system: Any, folder: tuple[str, Mapping[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Return the files of a folder of a trace, by name below the trace, with the server's facts."""
    name, facts = folder
    entries = _list_entries(system, str(facts["name"]))
    return [
        (f"{name}/{inner_name}", inner_facts)
        for inner_name, inner_facts in entries.items()
        if name != SAMPLES_FOLDER or inner_name.endswith(TRACE_SUFFIX)
    ]


def _describe_file(system: Any, entry: tuple[str, Mapping[str, Any]]) -> RemoteFile:
    """Describe one file; lists of web servers say no size, so each file is asked for."""
    name, facts = entry
    return _make_file(name, facts if facts.get("size") is not None else system.info(facts["name"]))


def _make_file(name: str, facts: Mapping[str, Any]) -> RemoteFile:
    size = facts.get("size")
    version = next((str(facts[key]) for key in _VERSIONS if facts.get(key)), None)
    return RemoteFile(name, str(facts["name"]), None if size is None else int(size), version)


def _build_empty_error(address: str, entries: Mapping[str, Mapping[str, Any]]) -> EmptyTrace:
    """Build the error for a folder without a recording; `entries` are the server's facts by name."""
    folders = [name for name, facts in entries.items() if facts["type"] == "directory"]
    advice = (
        f"it holds {len(folders)} folders, open one of them, for example "
        f"'{hide_secrets(address).rstrip('/')}/{folders[-1]}'"
        if folders
        else "check the address"
    )
    return EmptyTrace(
        f"'{hide_secrets(address)}' holds no recorded process (expected files such as "
        f"worker-00000-4242.arrow): {advice}."
    )
