"""Any changed bytes of a database give rows or a sentence; never a traceback, a hang or a view.

`TRACELENS_MUTATIONS=20000` tries 20,000 changes.
"""

import os
import random
import sqlite3
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from support.nsight import training
from support.tiers import few_or_many

from tracelens.errors import NotATrace, TraceLensError
from tracelens.readers.nsight import NsightReader
from tracelens.readers.nsight.database import MAGIC, open_database

MUTATIONS: Final = int(os.environ.get("TRACELENS_MUTATIONS", "300"))


def mutate_bytes(content: bytes, seed: int) -> bytes:
    """Change some bytes, cut the end off, or repeat a part."""
    luck = random.Random(seed)
    changed = bytearray(content)
    for _ in range(luck.choice((1, 2, 8, 64))):
        offset = luck.randrange(16 if luck.random() < 0.98 else 0, len(changed))
        flipped = changed[offset] ^ (1 << luck.randrange(8))
        changed[offset] = luck.choice((0, 255, luck.randrange(256), flipped))
    if luck.random() < 0.1:
        del changed[luck.randrange(len(changed)) :]
    if luck.random() < 0.1:
        page = luck.randrange(len(changed) // 4096 + 1) * 4096
        other = luck.randrange(len(changed) // 4096 + 1) * 4096
        changed[page : page + 4096] = changed[other : other + 4096]
    return bytes(changed)


@pytest.mark.parametrize("mutations", few_or_many(30, MUTATIONS))
def test_changed_bytes_are_read_or_refused(mutations: int, tmp_path: Path) -> None:
    """Both happen, or the changes would show nothing."""
    sound_bytes = training(0, steps=4).write(tmp_path / "whole.sqlite").read_bytes()
    outcomes: dict[str, int] = defaultdict(int)
    for seed in range(mutations):
        file = tmp_path / "changed.sqlite"
        file.write_bytes(mutate_bytes(sound_bytes, seed))
        try:
            trace = NsightReader().read(file)
            assert trace.events.collect().height > 0
            outcomes["read"] += 1
        except TraceLensError as error:
            outcomes["refused" if "\n" not in str(error) else f"{seed}: {error}"] += 1
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > mutations // 50, outcomes


def test_views_are_not_read(tmp_path: Path) -> None:
    """A view called as a table of Nsight could run for ever; it counts as missing."""
    file = training(0, steps=4).write(tmp_path / "a.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute("drop table CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute(
            "create view CUPTI_ACTIVITY_KIND_KERNEL as with recursive t(start) as "
            "(select 1 union all select start + 1 from t) select start from t"
        )
    connection.close()
    names = set(NsightReader().read(file).events.collect()["name"].cast(str))
    assert names == {"forward", "backward", *(f"step {step}" for step in range(4))}


def test_work_without_end_is_cut_short(tmp_path: Path) -> None:
    """A query of more instructions than the file's size allows is taken for damage."""
    path = training(0, steps=2000).write(tmp_path / "a.sqlite")
    with pytest.raises(NotATrace, match="interrupted"), open_database(path) as database:
        replace(database, max_instructions=0).read_columns(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=pl.Int64(), end=pl.Int64()
        )


def test_a_file_beyond_the_limit_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = training(0, steps=4).write(tmp_path / "a.sqlite")
    monkeypatch.setenv("TRACELENS_LIMITS", "file=1000")
    with pytest.raises(NotATrace, match="--limit file="):
        NsightReader().read(file)


def test_of_a_folder_the_others_are_read(tmp_path: Path) -> None:
    training(0, steps=4).write(tmp_path / "a.sqlite")
    (tmp_path / "b.sqlite").write_bytes(MAGIC + b"\x00" * 5000)
    trace = NsightReader().read(tmp_path)
    assert trace.processes["rank"].to_list() == [0]
    assert [note.kind for note in trace.notes if note.file == "b.sqlite"] == ["unreadable"]
