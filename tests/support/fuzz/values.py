"""Changes of what JSON holds: members that are missing, repeated, or have values that nobody writes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from support.fuzz.changes import NUMBERS

if TYPE_CHECKING:
    import random

__all__ = ["ODD", "TEXTS", "change", "text_of"]

TEXTS: Final = (
    "", "x" * 300, "\udcff", "\x00", "\x1b[31m", "\u202e", "<img src=x onerror=alert(1)>", "=1+1",
    "../../etc/passwd", "12", "-1", "nan", "1e999", "[0, 1, 2]", "[0, ..., 9]", "ProfilerStep#3", "null",
    "worker", "forward", "\N{GRINNING FACE}",
)  # fmt: skip
ODD: Final[tuple[Any, ...]] = (
    None, True, False, *NUMBERS, 2**70, -(2**70), 10**400, 0.5, -0.0, 1e300, 1e-300, float("inf"),
    float("-inf"), float("nan"), *TEXTS, [], [[]], {}, {"a": {"b": []}}, [1, 2, 3], [None], ["x"],
)  # fmt: skip
_DEEP: Final = 100_000
_ROWS: Final = 50


def change(value: Any, luck: random.Random) -> Any:
    """Return a value that differs in one place; what it was made of may be changed."""
    if not isinstance(value, (dict, list)) or not value:
        return deepcopy(luck.choice(ODD))
    holder: Any = value
    while True:
        key = luck.choice(list(holder)) if isinstance(holder, dict) else luck.randrange(len(holder))
        inner = holder[key]
        if isinstance(inner, (dict, list)) and inner and luck.random() < 0.85:
            holder = inner
            continue
        _change_member(holder, key, luck)
        return value


def _change_member(holder: Any, key: Any, luck: random.Random) -> None:
    kind = luck.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.25 and isinstance(holder, list):
        holder += [deepcopy(holder[key]) for _ in range(luck.choice((1, _ROWS)))]
    elif kind < 0.32 and isinstance(holder, dict):
        holder[luck.choice(TEXTS)] = holder.pop(key)
    elif kind < 0.5 and isinstance(holder[key], int):
        holder[key] += luck.choice((-1, 1, -(10**9), 10**9, 10**15))
    else:
        holder[key] = deepcopy(luck.choice(ODD))  # what is put in may be changed, too


def text_of(value: Any, luck: random.Random) -> bytes:
    """Write a value down, now and then nested without end; characters may be halves of pairs."""
    text = json.dumps(value, ensure_ascii=luck.random() < 0.5)
    if luck.random() < 0.002:
        place = luck.randrange(len(text) + 1)
        text = text[:place] + luck.choice("[{") * _DEEP + text[place:]
    return text.encode("utf-8", "surrogatepass")
