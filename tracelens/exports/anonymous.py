"""Replaces the names of hosts, users, jobs and paths by numbered ones, the same name always alike.

Words that the format knows (kinds, operations, phases) stay, and so do names of spans, threads and
communicators but for what of them is a path, a host or a user. Users are known by the home folders in
any path of the run, and by the account that converts it. Names of four letters and more are replaced
wherever they occur, shorter ones as whole words.
"""

from __future__ import annotations

import getpass
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracelens.model.trace import Trace

_PART: Final = r"[^\s/\\\"'<>|:*?,;=()\[\]{}]+"
_PATH: Final = re.compile(
    rf"""
      [A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>()\[\]{{}}]+   # an address, such as tcp://node7:29500
    | (?<![\w.~-])(?:~[\w.-]*|\.{{1,2}})?(?:/{_PART})+/?  # /scratch/run, ~/run, ../run
    | (?<![A-Za-z])[A-Za-z]:\\(?:{_PART}\\?)*          # C:\Users\run
    | \\\\{_PART}(?:\\{_PART})+                         # \\server\share
    | (?<![\w./\\-])(?:{_PART}[/\\])+{_PART}\.[A-Za-z]\w{{0,11}}  # runs/train.py
    | (?<![\w./\\-])[\w-]+\.(?:py|pyc|ipynb|sh|ckpt|pt|pth|safetensors)\b
    """,
    re.VERBOSE,
)
_FRAME: Final = re.compile(r"(?P<function>.*) \((?P<file>.*?)(?P<line>:\d+)?\)", re.DOTALL)
_BUILT_IN: Final = re.compile(r"<[^<>/\\]*>")  # <frozen runpy>, <string>
_HOME: Final = re.compile(r"[/\\](?:home|Users|users)[/\\]([^\s/\\:\"'()]+)")
_ADDRESS: Final = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_OURS: Final = re.compile(r"(?:rank|ps) \d+")  # what a table without hosts gets for one
_EVERYWHERE: Final = ("root", "")  # an account of every machine, and of nobody
_SHORT: Final = 4
_WORDS: Final = ("name", "communicator", "algorithm")


class Replacements:
    """Numbers names in the order in which they are met; `text` replaces those in any text."""

    def __init__(self, hosts: Iterable[str], texts: Iterable[str]) -> None:
        """Learn the hosts, and from all texts of the run its users and odd paths."""
        self._numbered: dict[str, dict[str, str]] = {}
        self._known: dict[str, str] = {}
        replacements: dict[str, str] = {}
        for host in hosts:
            replacement = self._number("host", host)
            if not _OURS.fullmatch(host):
                replacements |= dict.fromkeys({host, host.partition(".")[0]} - {""}, replacement)
        distinct_texts = dict.fromkeys(text for text in texts if text)
        for user in _find_users(distinct_texts):
            replacements.setdefault(user, self._number("user", user))
        self._odd = _match_any(_find_odd_files(distinct_texts), bounded=False)
        self._names = replacements
        self._pattern = _match_any(replacements, bounded=True)

    def host(self, name: str) -> str:
        """Return the replacement of a host."""
        return self._number("host", name)

    def job(self, name: str) -> str:
        """Return the replacement of a job."""
        return self._number("job", name)

    def clock(self, name: str) -> str:
        """Return the replacement of a clock, whose name holds an identity of its host."""
        return self._number("clock", name)

    def text(self, text: str) -> str:
        """Return a text in which paths, hosts and users are replaced."""
        if text not in self._known:
            self._known[text] = self._replace(text)
        return self._known[text]

    def frame(self, text: str) -> str:
        """Return a frame of a stack, ``function (file:line)``, whose file is a path in any case."""
        match = _FRAME.fullmatch(text)
        if match is None or _BUILT_IN.fullmatch(match["file"]):
            return self.text(text)
        file = self._number("path", match["file"])
        return f"{self.text(match['function'])} ({file}{match['line'] or ''})"

    def events(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return events whose names hold no path, host or user."""
        return events.with_columns(self._replace_column(events[name]) for name in _WORDS)

    def samples(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return samples of stacks in which the names of threads and files are replaced."""
        different = samples["frames"].explode().drop_nulls().unique(maintain_order=True).to_list()
        frames = {frame: self.frame(frame) for frame in different}
        return samples.with_columns(
            self._replace_column(samples["thread_name"]),
            pl.col("frames").list.eval(
                pl.element().replace_strict(frames, default=None, return_dtype=pl.String)
            ),
        )

    def _replace_column(self, column: pl.Series) -> pl.Series:
        texts = column.cast(pl.String)
        distinct_texts = texts.drop_nulls().unique(maintain_order=True)
        replacements = {word: self.text(word) for word in distinct_texts}
        if all(word == found for word, found in replacements.items()):
            return column
        return texts.replace_strict(replacements, default=None, return_dtype=pl.String).cast(
            column.dtype
        )

    def _replace(self, text: str) -> str:
        if self._odd:
            text = self._odd.sub(lambda match: self._number("path", match[0]), text)
        text = _PATH.sub(self._replace_path, text)
        if self._pattern:
            text = self._pattern.sub(lambda match: self._names[match[0]], text)
        return _ADDRESS.sub(lambda match: self._number("host", match[0]), text)

    def _replace_path(self, match: re.Match[str]) -> str:
        path = match[0].rstrip(".")
        return self._number("path", path) + match[0][len(path) :]

    def _number(self, noun: str, name: str) -> str:
        numbered_names = self._numbered.setdefault(noun, {})
        return numbered_names.setdefault(name, f"{noun}-{len(numbered_names)}") if name else ""


def texts_of(trace: Trace, names: Iterable[str]) -> Iterator[str]:
    """Yield all texts of a run that may hold paths or users; `names` are those of its events."""
    for table, column in (
        (trace.processes, "job"),
        (trace.threads, "name"),
        (trace.communicators, "name"),
        (trace.samples, "thread_name"),
    ):
        yield from table[column].drop_nulls().unique(maintain_order=True)
    yield from names
    yield from trace.samples["frames"].explode().drop_nulls().unique(maintain_order=True)


def _find_users(texts: Iterable[str]) -> list[str]:
    """Return the users whose home folders are named, and the one who converts."""
    users = [user for text in texts for user in _HOME.findall(text)]
    with suppress(OSError, KeyError, RuntimeError):  # an account without a name
        users += [getpass.getuser(), Path.home().name]
    return [user for user in dict.fromkeys(users) if user not in _EVERYWHERE]


def _find_odd_files(texts: Iterable[str]) -> list[str]:
    """Return the files of frames that do not look like a path by themselves, such as with blanks."""
    files = (match["file"] for text in texts if (match := _FRAME.fullmatch(text)))
    return [
        file
        for file in dict.fromkeys(files)
        if ("/" in file or "\\" in file) and not _PATH.fullmatch(file)
    ]


def _match_any(names: Iterable[str], *, bounded: bool) -> re.Pattern[str] | None:
    """Return a pattern of any of some names, the longest first; short ones only as whole words."""
    ordered = sorted(names, key=len, reverse=True)
    patterns = [
        rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
        if bounded and len(name) < _SHORT
        else re.escape(name)
        for name in ordered
    ]
    return re.compile("|".join(patterns)) if patterns else None
