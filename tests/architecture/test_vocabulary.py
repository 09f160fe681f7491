"""The code and its output use the field's words: no synonym of our own for a straggler or a residual.

`BANNED` and `BANNED_IN_SENTENCES` name what to write instead. What is left is in `EXCEPTIONS`, room by
room, each with its reason; an entry that is not needed any more fails, so the list can only shrink.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "tracelens",
    "instrument/tracelens_instrument",
    "dashboard/tracelens_dashboard",
)

# Words of names, without inflections that mean something else ("latest", "delayed"), and what to use.
BANNED: Final = {
    "late lately lateness": "straggler, delay, residual",
    "excess": "residual (against peers), overflow",
    "evened": "balanced",
    "stay stays": "episode, stretch",
    "blame blamed": "cause, wait caused",
    "witness witnesses": "corroboration",
    "wanders wandering": "migrating",
    "together": "joined, concatenated, combined",
    "played": "replayed",
    "mend mended mending": "fix, fixed",
    "twin": "fallback",
    "slowly": "slow_path",
    "here itself": "the thing's name: thread_state, self",
    "badness": "severity",
    "unsure": "uncertainty",
    "misfit": "deviation, residual",
    "swing swings": "spread, interval",
    "believed felt faint": "what was measured",
    "said say saying spoken unsaid tell telling told": "report, sentence, message, words, given",
    "hear heard heed heeded deaf deafen ear": "receive, listen, handle",
    "confess": "report",
    "who whom whose nobody somebody anybody everybody": "rank, process, identity, subject, no rank",
    "came come comes went gone stood": "arrived, received, returned, dropped, waited",
    "fate rivals shelf spoilt strange strangers calm trouble": "a word that says what it is",
}
INSTEAD: Final = {word: use for words, use in BANNED.items() for word in words.split()}

# In sentences, and in the first lines of docstrings.
BANNED_IN_SENTENCES: Final = {
    r"nobody|somebody|everybody": "no rank, no process",
    r"mend(s|ed|ing)?": "fix",
    r"evened": "balanced",
    r"lateness": "delay, residual",
    r"idleness": "idle time",
    r"(was|is|are|were|be) told": "reported",
    r"tells? apart|told apart": "distinguished",
    r"held against": "compared with",
    r"in line for": "serialized at",
    r"played again": "replayed",
    r"witness(es)?": "corroboration",
    r"once more": "again",
}
SENTENCES: Final = re.compile(
    "|".join(rf"(?P<b{i}>\b(?:{p})\b)" for i, p in enumerate(BANNED_IN_SENTENCES)), re.IGNORECASE
)
# A function returns, a callback is called.
NO_DOCSTRING: Final = re.compile(r"(Say|Tell|Be told|Hear|Heed)\b")


class Room(NamedTuple):
    """What of a room is excepted, and why."""

    why: str
    words: str = ""  # in names
    phrases: int = 0  # at most so many in sentences and first lines of docstrings


_LATER: Final = "redesigned by a later issue, so moved as it is"
EXCEPTIONS: Final = {
    "tracelens/analyses/stragglers": Room(
        _LATER,
        "late",
    ),
    "tracelens/replay": Room(_LATER, "late"),
}


class Found(NamedTuple):
    """A banned word, and where."""

    room: str
    where: str
    word: str


def _files() -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield each file with its nodes, which nothing keeps: garbage among all takes seconds."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield str(file.relative_to(ROOT)), list(ast.walk(ast.parse(file.read_text())))


def _room(path: str) -> str:
    """Return the excepted room in which a file is, the innermost one, or its package."""
    inside = [room for room in EXCEPTIONS if path == room or path.startswith(f"{room}/")]
    return max(inside, key=len, default=next(p for p in PACKAGES if path.startswith(p)))


@functools.cache
def words_in(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()))


def _names(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines: functions, classes, arguments, attributes, variables."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno


def _docstrings(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()) as found), *_]:
                    yield found


def _sentences(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield the texts that are shown (those with a blank in them), and the first lines of docstrings."""
    documented = {id(found) for found in _docstrings(nodes)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip().partition("\n")[0] if id(node) in documented else node.value
            if " " in text.strip():
                yield text, node.lineno


@functools.cache
def _banned() -> tuple[list[Found], list[Found]]:
    """Return the banned words in names and in sentences."""
    names: list[Found] = []
    sentences: list[Found] = []
    for path, nodes in _files():
        names += _banned_names(path, nodes)
        sentences += _banned_sentences(path, nodes)
    return names, sentences


def _banned_names(path: str, nodes: list[ast.AST]) -> Iterator[Found]:
    for name, line in ((Path(path).stem, 1), *_names(nodes)):
        for word in words_in(name) & INSTEAD.keys():
            yield Found(_room(path), f"{path}:{line}: {name}", word)


def _banned_sentences(path: str, nodes: list[ast.AST]) -> Iterator[Found]:
    for text, line in _sentences(nodes):
        for match in SENTENCES.finditer(text):
            yield Found(_room(path), f"{path}:{line}: {text[:80]}", match.group())
    for docstring in _docstrings(nodes):
        if start := NO_DOCSTRING.match(str(docstring.value)):
            where = f"{path}:{docstring.lineno}: {start.string[:80]}"
            yield Found(_room(path), where, start.group())


def test_names_are_words_of_the_field() -> None:
    """No function, class, argument, attribute, variable or module has a banned word in its name."""
    allowed = {(room, word) for room, rest in EXCEPTIONS.items() for word in rest.words.split()}
    wrong = [
        f"{found.where}: instead of {found.word!r}, {INSTEAD[found.word]}"
        for found in _banned()[0]
        if (found.room, found.word) not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_sentences_are_words_of_the_field() -> None:
    """What is shown, and what docstrings begin with, has no banned phrase beyond the exceptions."""
    banned_words = _banned()[1]
    rooms = {banned.room for banned in banned_words}
    wrong = [
        banned.where
        for room in sorted(rooms)
        if len(those := [e for e in banned_words if e.room == room])
        > (EXCEPTIONS[room].phrases if room in EXCEPTIONS else 0)
        for banned in those
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", EXCEPTIONS)
def test_exceptions_are_needed(room: str) -> None:
    """Each has a reason, its room exists, and what it excepts is still there: else it goes."""
    excepted = EXCEPTIONS[room]
    assert excepted.why
    assert (ROOT / room).exists()
    used = {found.word for found in _banned()[0] if found.room == room}
    assert set(excepted.words.split()) <= used, "take these out of EXCEPTIONS"
    phrases = sum(found.room == room for found in _banned()[1])
    assert excepted.phrases <= phrases, f"{phrases} phrases are left: say so in EXCEPTIONS"


C_WORD: Final = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|([A-Za-z_]\w*)', re.DOTALL)


def test_names_in_c_are_words_of_the_field() -> None:
    """The same holds for the recorder's fast path, but for its comments and texts."""
    files = [*(ROOT / PACKAGES[1]).rglob("*.[ch]")]
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in sorted(set(C_WORD.findall(file.read_text())))
        if words_in(name) & INSTEAD.keys()
    ]
    assert not wrong, "\n".join(wrong)
