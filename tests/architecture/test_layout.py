"""Files are subjects: none too long, none too small without a reason, no folder too full."""

from __future__ import annotations

from typing import Final

import pytest
from support import rooms
from support.layout import (
    PACKAGES,
    Module,
    aliases,
    circles,
    files_by_folder,
    imports,
    modules,
    reaching,
    small_without_list,
)

MOST_FILES: Final = 20  # of a folder
MOST_LINES: Final = 450  # of a file
# Below 100 lines, imported by one module, and no entry of a list: each with the reason why it is a file.
ALONE: Final = {
    "tracelens.lod.tracks.area": "what the dashboard shows of it is drawn there, not computed",
    "tracelens.readers.otf2.regions": "what names and paradigms mean, not how rows are made",
    "tracelens.readers.flight_recorder.hangs": "compares all ranks, where a dump is of one",
    "tracelens.readers.kineto.matching": "what concerns the files of all ranks, not one",
    "tracelens.studies.traces": "what a run says, not what models do",
    "tracelens.studies.written": "how studies are written, not what is in them",
    "tracelens.reports.schema": "beside what it describes; only `validate` asks for it",
    "tracelens_dashboard.app.glossary": "a page of no run, with the documentation that it shows",
    "tracelens_dashboard.app.listening": "all that knows waitress",
    "tracelens_dashboard.app.wire": "how answers travel, not what is in them",
    "tracelens_dashboard.runs.worker": "how runs take turns, not what is done to them",
    "tracelens_instrument.device.cuda": "all that calls CUDA, as tests replace it",
    "tracelens_instrument.hooks.torch.loader_worker": "all that runs in loader processes",
    "tracelens_instrument.stacks.launch": "how a process is started, not whether",
}


@pytest.fixture(scope="module")
def library() -> dict[str, Module]:
    return modules()


def test_no_folder_is_too_full(library: dict[str, Module]) -> None:
    """A newcomer sees a folder at a glance."""
    assert {f: n for f, n in files_by_folder(library).items() if n > MOST_FILES} == {}


def test_no_module_is_too_long(library: dict[str, Module]) -> None:
    long = {name: module.lines for name, module in library.items() if module.lines > MOST_LINES}
    assert long == {}


def test_small_modules_have_a_reason(library: dict[str, Module]) -> None:
    """A module of a few lines with one importer belongs into it; the reasons are kept true."""
    assert set(small_without_list(library, imports(library))) == set(ALONE)


def test_privacy_is_said_by_packages(library: dict[str, Module]) -> None:
    """No underscored module names; the compiled module beside the recorder is no Python file."""
    last = {name: name.rpartition(".")[2] for name in library if name not in PACKAGES}
    assert [n for n, end in last.items() if end.startswith("_") and end != "__main__"] == []


def test_array_aliases_are_defined_once(library: dict[str, Module]) -> None:
    """`Floats` and its like come from `tracelens.arrays`."""
    assert {name: where for name, where in aliases(library).items() if len(where) > 1} == {}


def test_no_circles(library: dict[str, Module]) -> None:
    """Not even by imports inside functions or for types, which import contracts on packages may miss."""
    out = reaching(imports(library), "load", "call", "types")
    assert [part for part in circles(library, out) if len(part) > 1] == []


def test_the_picture_of_the_rooms_is_as_they_are() -> None:
    """`make rooms` would draw nothing else."""
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.draw()
