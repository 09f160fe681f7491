"""Any changed or cut archive gives rows or one sentence, also if the library crashes.

`TRACELENS_MUTATIONS=20000` tries 20,000 changes.
"""

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from support.fuzz.changes import damaged
from support.otf2_archives import training, write
from support.tiers import few_or_many

from tracelens.errors import NotATrace, TraceLensError
from tracelens.readers.otf2 import Otf2Reader, archive

pytest.importorskip("otf2")
MUTATIONS: Final = int(os.environ.get("TRACELENS_MUTATIONS", "40"))
FILES: Final = ("traces.otf2", "traces.def", "traces/0.evt", "traces/1.def")


@pytest.mark.parametrize("mutations", few_or_many(3, MUTATIONS // len(FILES)))
@pytest.mark.parametrize("name", FILES)
def test_changed_files_are_read_or_refused(name: str, mutations: int, tmp_path: Path) -> None:
    archive = write(tmp_path / "whole", training(2, 3)).parent
    copy = tmp_path / "changed"
    outcomes: Counter[str] = Counter()
    for seed in range(mutations):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(archive, copy)
        content = (archive / name).read_bytes()
        (copy / name).write_bytes(damaged(content, random.Random(f"{name} {seed}")))
        try:
            Otf2Reader().read(copy / "traces.otf2").events.collect()
            outcomes["read"] += 1
        except TraceLensError as error:
            outcomes["refused" if "\n" not in str(error) else f"{seed}: {error}"] += 1
    assert outcomes["refused"] > 0
    assert {*outcomes} <= {"read", "refused"}


@pytest.mark.parametrize("name", FILES[1:3])
def test_a_file_cut_off_is_one_sentence(name: str, tmp_path: Path) -> None:
    anchor = write(tmp_path / "run", training(2, 3))
    file = anchor.parent / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(NotATrace, match="is no whole OTF2 archive") as refused:
        Otf2Reader().read(anchor)
    assert "\n" not in str(refused.value)


def test_a_crash_of_the_library_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a file provokes would be: the process that reads ends by a signal."""
    anchor = write(tmp_path / "run", training(2, 3))
    crash = tmp_path / "crash.py"
    crash.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(archive, "_UNPACK", crash)
    with pytest.raises(NotATrace, match="ended OTF2's library"):
        Otf2Reader().read(anchor)
