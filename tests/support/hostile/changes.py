"""Changes to documents: trees of dicts, lists, texts and numbers from which every format is written."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from random import Random

MAX_ELEMENTS: Final = 3_000  # elements: a list that is repeated gets no longer [chosen]
MAX_TEXT: Final = 1 << 21  # characters: the longest text that is put in [chosen]
LARGE: Final = (2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**30)
TIMES: Final = (
    9_000_000_000_000_000_000,
    9_214_646_399_999_999_999,
    2**63 - 10,
    4_611_686_018_427_387_903,
)
NUMBERS: Final = (0, 1, -1, 0.5, 1e-9, 1e19, 1e308, -1e308, math.nan, math.inf, -math.inf, 5e-324)
TEXTS: Final = (
    *(
        "",
        " ",
        "\x00",
        "\ufeff",
        "\ud800",
        "\u202ename",
        "\x1b[31mred",
        "=1+1",
        "<script>",
        "a\nb\r\n",
    ),
    *(
        "NaN",
        "null",
        "-1",
        "1e400",
        "0x10",
        "é" * 40,
        "日本語",
        "../../x",
        "9" * 30,
        "{",
        '"',
        "'",
        ",",
    ),
    *("step 99999999999999999999", "ProfilerStep#-1", "allreduce", "rank 4294967296", "%s%n", "😀"),
)


def change(document: Any, random: Random) -> Any:
    """Change a document in place in one way; return it, or what replaces it."""
    if not isinstance(document, (dict, list)) or not document:
        return other_value(document, random)
    way = random.choice(_WAYS)
    return way(document, random) or document


def other_value(value: Any, random: Random) -> Any:
    """Return an extreme value: of the same type, a value near it, or one of another type."""
    kind = random.randrange(8)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and kind < 5:
        near = (
            value + random.choice(TIMES),
            -value,
            value * 1000,
            value + 0.5,
            value // 1 + 10**18,
        )
        return random.choice([*LARGE, *TIMES, *NUMBERS, *(-number for number in LARGE), *near])
    if isinstance(value, str) and kind < 5:
        return random.choice(
            [*TEXTS, value + random.choice(TEXTS), value.upper(), value[:4000] * 500]
        )
    odd: tuple[Any, ...] = (
        None,
        True,
        False,
        [],
        {},
        [[]],
        "text",
        7,
        -3.5,
        b"\xff\xfe",
        _deep(random),
        _long(random),
    )
    return random.choice([*odd, *NUMBERS, *LARGE])


def _deep(random: Random) -> Any:
    """Return lists or dicts nested deeper than a recursive parser survives."""
    nested: Any = 1
    for _ in range(random.choice([10, 900])):
        nested = [nested] if random.random() < 0.5 else {"a": nested}
    return nested


def _long(random: Random) -> str:
    return random.choice("x9{é \x00") * random.choice([300, 70_000, MAX_TEXT])


def _container(document: Any, random: Random) -> Any:
    """Return a container anywhere in the document, deep ones as often as shallow ones."""
    container = document
    for _ in range(random.randrange(7)):
        children = container.values() if isinstance(container, dict) else container
        inner = [
            child
            for child in _sample(list(children), random)
            if isinstance(child, (dict, list)) and child
        ]
        if not inner:
            break
        container = random.choice(inner)
    return container


def _sample(children: list[Any], random: Random) -> list[Any]:
    return children if len(children) < 50 else random.sample(children, 50)


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, dict) else list(range(len(container)))


def _replace(document: Any, random: Random) -> None:
    container = _container(document, random)
    key = random.choice(_keys(container))
    container[key] = other_value(container[key], random)


def _delete(document: Any, random: Random) -> None:
    container = _container(document, random)
    del container[random.choice(_keys(container))]


def _empty(document: Any, random: Random) -> None:
    _container(document, random).clear()


def _keep_one(document: Any, random: Random) -> None:
    container = _container(document, random)
    kept = random.choice(_keys(container))
    for key in reversed(_keys(container)):
        if key != kept:
            del container[key]


def _repeat(document: Any, random: Random) -> None:
    """Repeat an element of a list, mostly in place, sometimes the whole list."""
    container = _list(document, random)
    if container is None:
        return
    times = random.choice([1, 2, 50, MAX_ELEMENTS])
    index = random.randrange(len(container))
    elements = list(container) if random.random() < 0.3 else [container[index]]
    room = min(
        max(0, MAX_ELEMENTS - len(container)), 1 + MAX_TEXT // (1 + len(repr(container[index])))
    )
    container[index:index] = copy.deepcopy((elements * times)[:room])


def _list(document: Any, random: Random) -> list[Any] | None:
    for _ in range(8):
        container = _container(document, random)
        if isinstance(container, list) and container:
            return container
    return None


def _reorder(document: Any, random: Random) -> None:
    container = _list(document, random)
    if container is not None:
        way = random.randrange(3)
        ordered = [random.sample(container, len(container)), container[::-1]]
        container[:] = ordered[way] if way < 2 else sorted(container, key=repr)


def _exchange(document: Any, random: Random) -> None:
    """Exchange two values that need not be of one type."""
    container, other_container = _container(document, random), _container(document, random)
    if container is other_container or not (
        isinstance(container, dict) and isinstance(other_container, dict)
    ):
        key, other_key = random.choice(_keys(container)), random.choice(_keys(container))
        container[key], container[other_key] = container[other_key], container[key]
        return
    key, other_key = random.choice(_keys(container)), random.choice(_keys(other_container))
    if not isinstance(container[key], (dict, list)) and not isinstance(
        other_container[other_key], (dict, list)
    ):
        container[key], other_container[other_key] = other_container[other_key], container[key]


def _rename(document: Any, random: Random) -> None:
    container = _container(document, random)
    if isinstance(container, dict):
        key = random.choice(list(container))
        container[random.choice([*TEXTS, str(key).upper(), "extra"])] = container.pop(key)


def _column(document: Any, random: Random) -> None:
    """Change one member of all elements of a list alike, as a wrong unit or a wrong clock does."""
    container = _list(document, random)
    if container is None or not isinstance(container[0], (dict, list)) or not container[0]:
        return
    key = random.choice(_keys(container[0]))
    way, shift = (
        random.randrange(5),
        random.choice([*TIMES, *LARGE, *(-t for t in TIMES), 0.25, 1e18]),
    )
    share = random.choice([1.0, 1.0, 0.5, 0.02])
    fixed = other_value(_member(container[0], key), random)
    if isinstance(fixed, str):
        fixed = fixed[: 1 + MAX_TEXT // len(container)]
    for element in container:
        value = _member(element, key)
        if value is _ABSENT or random.random() > share:
            continue
        if way == 0:
            del element[key]
        elif way == 1:
            element[key] = fixed
        elif way == 2 and isinstance(value, (int, float)):
            element[key] = value + shift
        elif way == 3 and isinstance(value, (int, float)):
            element[key] = value * shift
        else:
            element[key] = other_value(value, random) if random.random() < 0.5 else str(value)


_ABSENT: Final = object()


def _member(element: Any, key: Any) -> Any:
    try:
        return element[key]
    except (LookupError, TypeError):
        return _ABSENT


_WAYS: Final = (
    *(
        _replace,
        _replace,
        _replace,
        _replace,
        _column,
        _column,
        _column,
        _delete,
        _empty,
        _keep_one,
    ),
    *(_repeat, _reorder, _exchange, _rename),
)


def damage(content: bytes, random: Random) -> bytes:
    """Change the bytes of a file: cut it, overwrite, remove, insert or repeat some."""
    if not content:
        return random.randbytes(random.randrange(64))
    at, length = random.randrange(len(content)), random.choice([1, 1, 2, 4, 8, 64, 4096])
    head, section, tail = content[:at], content[at : at + length], content[at + length :]
    high = b"\x7f" + bytes(length - 1)
    put = random.choice([bytes(length), b"\xff" * length, random.randbytes(length), high])
    kept = (head, head + tail, head + section * 2 + tail, section + tail)
    return random.choice([*kept, head + put + section + tail, *[head + put + tail] * 3])
