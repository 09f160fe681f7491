"""What a remote place is called, and how it may be shown: never with a password or a signature."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import os

Place: TypeAlias = Path | str  # a str is an address such as s3://bucket/run

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://", re.ASCII)  # two letters: c:// is a disk
_USER: Final = re.compile(r"(://)[^/\s'\"]*@")
_QUERY: Final = re.compile(r"\?[^\s'\"<>)]*")
_WEB: Final = ("http", "https")


def parse_place(text: str) -> Place:
    """Return a path, or the text itself where it is an address."""
    return text if is_remote(text) else Path(text)


def is_remote(place: str | os.PathLike[str]) -> TypeGuard[str]:
    """Return True for an address, False for a path."""
    return isinstance(place, str) and _ADDRESS.match(place) is not None


def is_web(address: str) -> bool:
    """Return True for a web server: ``?`` begins a query, and a page lists files."""
    return get_scheme(address) in _WEB


def is_pattern(address: str) -> bool:
    """Return True if several addresses may match it."""
    return any(letter in address for letter in ("*" if is_web(address) else "*?["))


def get_scheme(address: str) -> str:
    """Return the protocol."""
    return address.partition("://")[0].casefold()


def hide_secrets(text: str) -> str:
    """Return an address, or a sentence with addresses in it, without what may be secret.

    A user and a password stand before an ``@``; signatures and tokens in the query of a web address.
    """
    public = hide_user(text)
    return _QUERY.sub("", public) if re.search(r"https?://", public, re.IGNORECASE) else public


def hide_user(address: str) -> str:
    """Return an address without the user and the password before an ``@``."""
    return _USER.sub(r"\1", address)


def is_within(address: str, folder: str) -> bool:
    """Return True if an entry of a folder's listing is inside of it; web pages link to anything."""
    return not is_web(folder) or _web_parts(address)[0] == urlsplit(folder).path.rstrip("/")


def last_name(address: str) -> str:
    """Return the name of a file or folder, as its server spells it."""
    if is_web(address):
        return unquote(_web_parts(address)[1])
    return address.rstrip("/").rpartition("/")[2]


def _web_parts(address: str) -> tuple[str, str]:
    """Return the folder and the name in the path of a web address, as they are spelled there."""
    folder, _, name = urlsplit(address).path.rstrip("/").rpartition("/")
    return folder, name
