"""Translates kind, operation and name of every row of a table into TraceLens' words.

The kind is taken from the word for it, else from the operation, else from the name. Rows of an unknown
word are kept as kind ``user`` under their name, and a note lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.model.trace import Note
from tracelens.readers.base import quoted
from tracelens.readers.table.columns import list_distinct_words, replace_words
from tracelens.readers.table.naming import map_option
from tracelens.readers.words import find_kernel_meaning, find_meaning, find_role, normalize_word
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


def translate(rows: pl.DataFrame, renaming: Renaming) -> tuple[pl.DataFrame, list[Note]]:
    """Fill kind, op and name of every row; each combination of words is translated once."""
    missing_names = [name for name in _SOURCES if name not in rows.columns]
    rows = rows.with_columns(pl.lit(None, _WORD).alias(name) for name in missing_names)
    combinations = rows.group_by(_SOURCES, maintain_order=True).agg(count=pl.len())
    translations = _translate_words(combinations, renaming)
    meanings = translations.select(*_SOURCES, *_MEANT.values())
    joined = rows.join(meanings, on=_SOURCES, how="left", nulls_equal=True, maintain_order="left")
    translated_rows = joined.drop(_SOURCES).rename({meant: name for name, meant in _MEANT.items()})
    return translated_rows, _note_unknown_words(translations) + _note_nameless(translations)


def _translate_words(combinations: pl.DataFrame, renaming: Renaming) -> pl.DataFrame:
    """Return the meaning of each combination of kind, op and name, and the unknown word in it.

    `combinations` has a row for each, and the `count` of rows that have it. `unknown` is null if the
    kind is known, "" if there is no word for it.
    """
    meanings = {name: _find_meanings(combinations, name, renaming) for name in _SOURCES}
    kind_by_column = {
        name: _translate_column(name, {word: kind for word, (kind, _) in meanings[name].items()})
        for name in _SOURCES
    }
    kind_by_name = pl.when(pl.col("kind").is_null()).then(kind_by_column["name"])
    communication_names = filter(find_kernel_meaning, list_distinct_words(combinations["name"]))
    is_kernel = kind_by_column["kind"] == "device"
    is_communication = is_kernel & pl.col("name").cast(pl.String).is_in([*communication_names])
    kernel_kind = pl.when(is_communication).then(pl.lit("reduction", _WORD))
    kind = pl.coalesce(kernel_kind, kind_by_column["kind"], kind_by_column["op"], kind_by_name)
    return combinations.with_columns(
        kind_meant=kind.fill_null(pl.lit("user", _WORD)),
        op_meant=_choose_operation(meanings, kind),
        name_meant=pl.coalesce("name", "op", "kind", pl.lit("user", _WORD)),
        unknown=pl.when(kind.is_null()).then(pl.coalesce("kind", "name", pl.lit("", _WORD))),
    )


def translate_roles(rows: pl.DataFrame, renaming: Renaming, table: str) -> pl.DataFrame:
    """Fill the role of every row: as given, else servers are the ranks that only serve.

    Raises:
        UnusableInput: a role is neither worker nor ps.
    """
    is_serving = pl.col("op").cast(pl.String).is_in(_SERVING) & (pl.col("kind") == "ps")
    only_serves = is_serving.all().over("rank")
    guessed_role = pl.when(only_serves).then(pl.lit("ps")).otherwise(pl.lit("worker")).cast(_WORD)
    if "role" not in rows.columns:
        return rows.with_columns(role=guessed_role)
    words = list_distinct_words(rows["role"])
    role_by_word = {
        word: renaming.role_by_word.get(normalize_word(word)) or find_role(word) for word in words
    }
    unknown_words = [word for word, known_role in role_by_word.items() if known_role is None]
    if unknown_words:
        unknown_word = min(unknown_words)
        raise UnusableInput(
            f"In {table} the role {quoted(unknown_word)} is not known: expected worker or ps; say which "
            f"it is with {map_option('role:' + unknown_word, 'worker')} (or =ps)."
        )
    given_role = replace_words(rows["role"], role_by_word)
    return rows.with_columns(role=pl.coalesce(given_role, guessed_role))


def _find_meanings(rows: pl.DataFrame, column: str, renaming: Renaming) -> dict[str, Meaning]:
    """Return kind and operation of each known word of a column."""
    words = list_distinct_words(rows[column])
    meanings = {
        word: renaming.meaning_by_word.get(normalize_word(word)) or find_meaning(word)
        for word in words
    }
    return {word: kind_and_op for word, kind_and_op in meanings.items() if kind_and_op}


def _translate_column(column: str, our_word_by_word: Mapping[str, str | None]) -> pl.Expr:
    """Return an expression that translates a column's words to ours; unknown words become null."""
    translations = {word: ours for word, ours in our_word_by_word.items() if ours}
    if not translations:
        return pl.lit(None, _WORD)
    return pl.col(column).cast(pl.String).replace_strict(translations, default=None).cast(_WORD)


def _choose_operation(meanings: Mapping[str, Mapping[str, Meaning]], kind: pl.Expr) -> pl.Expr:
    """Return the operation by the first word of the row's kind, else the given operation.

    `meanings` are those of words, by column; `kind` is that of the row.
    """
    fitting_ops = []
    for column in ("op", "kind", "name"):
        op_by_word = {word: op for word, (_, op) in meanings[column].items()}
        kind_by_word = {word: k for word, (k, op) in meanings[column].items() if op}
        is_of_kind = _translate_column(column, kind_by_word) == kind
        fitting_ops.append(pl.when(is_of_kind).then(_translate_column(column, op_by_word)))
    return pl.coalesce(*fitting_ops, "op")


def _note_unknown_words(combinations: pl.DataFrame) -> list[Note]:
    """Note the words of no known kind; `combinations` has one row per kind, operation and name."""
    row_counts = (
        combinations.drop_nulls("unknown")
        .group_by(pl.col("unknown").cast(pl.String))
        .agg(pl.col("count").sum())
        .sort("count", "unknown", descending=[True, False])
    )
    if row_counts.is_empty():
        return []
    total_count, top_counts = row_counts["count"].sum(), row_counts.head(MAX_WORDS_LISTED).rows()
    listed = [f"{quoted(word) if word else 'none'} ({count:,})" for word, count in top_counts]
    unlisted_count = row_counts.height - len(top_counts)
    unlisted_text = f" and {unlisted_count} more" if unlisted_count else ""
    sentence = (
        f"{total_count:,} spans are of a kind that TraceLens does not know: "
        f"{', '.join(listed)}{unlisted_text}; "
        "they are kept as 'user'. Say what one means with --map kind:WORD=KIND."
    )
    return [Note(file="", sentence=sentence, kind="table")]


def _note_nameless(combinations: pl.DataFrame) -> list[Note]:
    """Note reductions without an operation, which cannot be matched."""
    without_op = (pl.col("kind_meant") == "reduction") & pl.col("op_meant").is_null()
    count = int(combinations.filter(without_op)["count"].sum())
    if not count:
        return []
    sentence = (
        f"{count:,} reductions name no operation (allreduce, broadcast, ...): whom they waited for is "
        "unknown."
    )
    return [Note(file="", sentence=sentence, kind="table")]
