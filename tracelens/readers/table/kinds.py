"""Translates kind, operation and name of every row of a table into TraceLens' words.

The kind is taken from the word for it, else from the operation, else from the name; only a kernel that
communicates says so in its name alone. An unknown word
loses nothing: its rows are kept as kind ``user`` under their name, and a note lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.model.trace import Note
from tracelens.readers.base import quoted
from tracelens.readers.table.columns import distinct_words, mapped
from tracelens.readers.table.naming import map_option
from tracelens.readers.words import kernel_meaning, meaning, normal, role
from tracelens.schema.vocabulary import OPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.readers.table.naming import Renaming
    from tracelens.readers.words import Meaning

_SOURCES: Final = ["kind", "op", "name"]  # in this order
_MEANT: Final = {name: f"{name}_meant" for name in _SOURCES}
_SERVING: Final = tuple(op for op in OPS["ps"] if op not in {"push", "pull"})
MAX_WORDS_LISTED: Final = 12  # words in a sentence: more are counted [policy]
_WORD: Final = pl.Categorical()


def translate(frame: pl.DataFrame, renaming: Renaming) -> tuple[pl.DataFrame, list[Note]]:
    """Fill kind, op and name of every row; return notes on unknown words."""
    absent = [pl.lit(None, _WORD).alias(name) for name in _SOURCES if name not in frame.columns]
    frame = frame.with_columns(absent)
    distinct = frame.group_by(_SOURCES, maintain_order=True).agg(count=pl.len())
    translated = _translate_words(distinct, renaming)
    meanings = pl.concat(
        [distinct.select(_SOURCES), translated.select(*_MEANT.values())], how="horizontal"
    )
    joined = frame.join(meanings, on=_SOURCES, how="left", nulls_equal=True, maintain_order="left")
    rows = joined.drop(_SOURCES).rename({meant: name for name, meant in _MEANT.items()})
    return rows, _notes_on_unknown(translated) + _notes_on_nameless(translated)


def _translate_words(distinct: pl.DataFrame, renaming: Renaming) -> pl.DataFrame:
    """Return the meaning of each combination of words, and the unknown words in it."""
    meanings = {name: _known_words(distinct, name, renaming) for name in _SOURCES}
    kinds = {
        name: _translate_column(name, {w: kind for w, (kind, _) in meanings[name].items()})
        for name in _SOURCES
    }
    by_name = pl.when(pl.col("kind").is_null()).then(kinds["name"])
    kernels = [word for word in distinct_words(distinct["name"]) if kernel_meaning(word)]
    communicates = pl.col("name").cast(pl.String).is_in(kernels) & (kinds["kind"] == "device")
    reduces = pl.when(communicates).then(pl.lit("reduction", _WORD))
    kind = pl.coalesce(reduces, kinds["kind"], kinds["op"], by_name)
    return distinct.with_columns(
        kind_meant=kind.fill_null(pl.lit("user", _WORD)),
        op_meant=_operation(meanings, kind),
        name_meant=pl.coalesce("name", "op", "kind", pl.lit("user", _WORD)),
        unknown=pl.when(kind.is_null()).then(pl.coalesce("kind", "name", pl.lit("", _WORD))),
    )


def translate_roles(frame: pl.DataFrame, renaming: Renaming, table: str) -> pl.DataFrame:
    """Fill the role of every row: as given, else servers are the ranks that only serve.

    Raises:
        UnusableInput: a role is neither worker nor ps.
    """
    serving = pl.col("op").cast(pl.String).is_in(_SERVING) & (pl.col("kind") == "ps")
    guessed = pl.when(serving.all().over("rank")).then(pl.lit("ps")).otherwise(pl.lit("worker"))
    if "role" not in frame.columns:
        return frame.with_columns(role=guessed.cast(_WORD))
    roles = {
        role_word: renaming.roles.get(normal(role_word)) or role(role_word)
        for role_word in distinct_words(frame["role"])
    }
    unknown_word = min(
        (role_word for role_word, meaning in roles.items() if meaning is None), default=None
    )
    if unknown_word is not None:
        raise UnusableInput(
            f"In {table} the role {quoted(unknown_word)} is not known: expected worker or ps; say which "
            f"it is with {map_option('role:' + unknown_word, 'worker')} (or =ps)."
        )
    given = mapped(frame["role"], roles)
    return frame.with_columns(role=pl.coalesce(given, guessed.cast(_WORD)))


def _known_words(frame: pl.DataFrame, column: str, renaming: Renaming) -> dict[str, Meaning]:
    meanings = {
        spelling: renaming.kinds.get(normal(spelling)) or meaning(spelling)
        for spelling in distinct_words(frame[column])
    }
    return {spelling: known for spelling, known in meanings.items() if known}


def _translate_column(column: str, known: Mapping[str, str | None]) -> pl.Expr:
    """Replace every word of a column by its meaning, null where that is nothing."""
    translations = {word: ours for word, ours in known.items() if ours}
    if not translations:
        return pl.lit(None, _WORD)
    return pl.col(column).cast(pl.String).replace_strict(translations, default=None).cast(_WORD)


def _operation(known: Mapping[str, Mapping[str, Meaning]], kind: pl.Expr) -> pl.Expr:
    """Return the operation by the first word of the row's kind, else the given operation."""
    fitting = []
    for name in ("op", "kind", "name"):
        op = _translate_column(name, {word: op for word, (_, op) in known[name].items()})
        of = _translate_column(name, {word: kind for word, (kind, op) in known[name].items() if op})
        fitting.append(pl.when(of == kind).then(op))
    return pl.coalesce(*fitting, "op")


def _notes_on_unknown(translated: pl.DataFrame) -> list[Note]:
    counts = (
        translated.drop_nulls("unknown")
        .group_by(pl.col("unknown").cast(pl.String))
        .agg(pl.col("count").sum())
        .sort("count", "unknown", descending=[True, False])
    )
    if counts.is_empty():
        return []
    total, listed_counts = int(counts["count"].sum()), counts.head(MAX_WORDS_LISTED)
    listed = [
        f"{quoted(word)} ({n:,})" if word else f"none ({n:,})"
        for word, n in listed_counts.iter_rows()
    ]
    more_words = (
        f" and {counts.height - MAX_WORDS_LISTED} more" if counts.height > MAX_WORDS_LISTED else ""
    )
    sentence = (
        f"{total:,} spans are of a kind that TraceLens does not know: {', '.join(listed)}{more_words}; "
        "they are kept as 'user'. Say what one means with --map kind:WORD=KIND."
    )
    return [Note(file="", sentence=sentence, kind="table")]


def _notes_on_nameless(translated: pl.DataFrame) -> list[Note]:
    """Note reductions without an operation, which cannot be matched."""
    without_op = (pl.col("kind_meant") == "reduction") & pl.col("op_meant").is_null()
    count = int(translated.filter(without_op)["count"].sum())
    if not count:
        return []
    sentence = (
        f"{count:,} reductions name no operation (allreduce, broadcast, ...): whom they waited for is "
        "unknown."
    )
    return [Note(file="", sentence=sentence, kind="table")]
