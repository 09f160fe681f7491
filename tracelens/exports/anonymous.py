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
        """Number the hosts, and the users and odd paths that occur in the run's texts."""
        self._numbered_names: dict[str, dict[str, str]] = {}
        self._replaced_texts: dict[str, str] = {}
        self._replacement_by_name: dict[str, str] = {}
        for host in hosts:
            replacement = self._number_name("host", host)
            if not _OURS.fullmatch(host):
                names = {host, host.partition(".")[0]} - {""}
                self._replacement_by_name |= dict.fromkeys(names, replacement)
        distinct_texts = dict.fromkeys(text for text in texts if text)
        for user in _find_users(distinct_texts):
            self._replacement_by_name.setdefault(user, self._number_name("user", user))
        self._odd_path_pattern = _match_any(_find_odd_files(distinct_texts), short_as_words=False)
        self._name_pattern = _match_any(self._replacement_by_name, short_as_words=True)

    def replace_host(self, name: str) -> str:
        """Return the replacement of a host."""
        return self._number_name("host", name)

    def replace_job(self, name: str) -> str:
        """Return the replacement of a job."""
        return self._number_name("job", name)

    def replace_clock(self, name: str) -> str:
        """Return the replacement of a clock, whose name holds an identity of its host."""
        return self._number_name("clock", name)

    def replace_text(self, text: str) -> str:
        """Return a text in which paths, hosts and users are replaced."""
        if text not in self._replaced_texts:
            self._replaced_texts[text] = self._replace_names(text)
        return self._replaced_texts[text]

    def replace_frame(self, text: str) -> str:
        """Return a frame of a stack, ``function (file:line)``, whose file is a path in any case."""
        match = _FRAME.fullmatch(text)
        if match is None or _BUILT_IN.fullmatch(match["file"]):
            return self.replace_text(text)
        file = self._number_name("path", match["file"])
        return f"{self.replace_text(match['function'])} ({file}{match['line'] or ''})"

    def replace_events(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return events whose names hold no path, host or user."""
        return events.with_columns(self._replace_column(events[name]) for name in _WORDS)

    def replace_samples(self, samples: pl.DataFrame) -> pl.DataFrame:
        """Return stack samples, one row per sample, with thread names and files replaced."""
        frames = samples["frames"].explode().drop_nulls().unique(maintain_order=True).to_list()
        replacements = {frame: self.replace_frame(frame) for frame in frames}
        return samples.with_columns(
            self._replace_column(samples["thread_name"]),
            pl.col("frames").list.eval(
                pl.element().replace_strict(replacements, default=None, return_dtype=pl.String)
            ),
        )

    def _replace_column(self, column: pl.Series) -> pl.Series:
        """Return the column with names in its texts replaced, itself if it has none."""
        texts = column.cast(pl.String)
        distinct_texts = texts.drop_nulls().unique(maintain_order=True)
        replacement_by_text = {text: self.replace_text(text) for text in distinct_texts}
        if all(text == replacement for text, replacement in replacement_by_text.items()):
            return column
        return texts.replace_strict(replacement_by_text, default=None, return_dtype=pl.String).cast(
            column.dtype
        )

    def _replace_names(self, text: str) -> str:
        if self._odd_path_pattern:
            text = self._odd_path_pattern.sub(
                lambda match: self._number_name("path", match[0]), text
            )
        text = _PATH.sub(self._replace_path, text)
        if self._name_pattern:
            text = self._name_pattern.sub(lambda match: self._replacement_by_name[match[0]], text)
        return _ADDRESS.sub(lambda match: self._number_name("host", match[0]), text)

    def _replace_path(self, match: re.Match[str]) -> str:
        path = match[0].rstrip(".")
        return self._number_name("path", path) + match[0][len(path) :]

    def _number_name(self, kind: str, name: str) -> str:
        numbered_names = self._numbered_names.setdefault(kind, {})
        return numbered_names.setdefault(name, f"{kind}-{len(numbered_names)}") if name else ""


def iterate_texts(trace: Trace, event_texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts of a run that may hold paths or users, `event_texts` of its events too."""
    for table, column in (
        (trace.processes, "job"),
        (trace.threads, "name"),
        (trace.communicators, "name"),
        (trace.samples, "thread_name"),
    ):
        yield from table[column].drop_nulls().unique(maintain_order=True)
    yield from event_texts
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


def _match_any(names: Iterable[str], *, short_as_words: bool) -> re.Pattern[str] | None:
    """Return a pattern of any of the names, the longest first; None without names.

    With `short_as_words`, names below `_SHORT` letters match as whole words only.
    """
    ordered_names = sorted(names, key=len, reverse=True)
    patterns = [
        rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
        if short_as_words and len(name) < _SHORT
        else re.escape(name)
        for name in ordered_names
    ]
    return re.compile("|".join(patterns)) if patterns else None
