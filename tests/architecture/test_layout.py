"""The library is laid out so that no module needs itself, and packages say what is private."""

import pytest
from support.layout import PACKAGES, Module, aliases, circles, imports, modules, reaching


@pytest.fixture(scope="module")
def library() -> dict[str, Module]:
    return modules()


def test_privacy_is_said_by_packages(library: dict[str, Module]) -> None:
    """Modules have no underscored names, except the compiled one of the recorder."""
    last = {name: name.rpartition(".")[2] for name in library if name not in PACKAGES}
    assert [n for n, end in last.items() if end.startswith("_") and end != "__main__"] == []


def test_array_aliases_are_defined_once(library: dict[str, Module]) -> None:
    """`Floats` and its like come from `tracelens.arrays`."""
    assert {name: where for name, where in aliases(library).items() if len(where) > 1} == {}


@pytest.mark.slow
def test_no_circles(library: dict[str, Module]) -> None:
    """Not even by imports inside functions or for types, which import contracts on packages may miss."""
    out = reaching(imports(library), "load", "call", "types")
    assert [part for part in circles(library, out) if len(part) > 1] == []
