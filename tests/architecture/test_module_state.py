"""Modules of the core hold constants: nothing at module level changes while a program runs."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.layout import Module, modules

CONTAINERS: Final = {
    "Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "bytearray",
    "defaultdict", "deque", "dict", "list", "set",
}  # fmt: skip
CHANGES: Final = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert",
    "intersection_update", "pop", "popitem", "popleft", "remove", "reverse", "setdefault", "sort",
    "symmetric_difference_update", "update",
}  # fmt: skip
DISPLAYS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
# What is of the whole process. This list may only shrink.
OF_THE_PROCESS: Final = {
    ("tracelens.containment", "_contained"),  # a process may be ended by what it reads
    ("tracelens.containment", "_reason_by_path"),  # so these files are not read
    ("tracelens.lod.lane_files", "DECODED"),  # one bound on the memory of all runs that are open
}


@pytest.fixture(scope="module")
def core() -> dict[str, Module]:
    return {name: one for name, one in modules().items() if name.startswith("tracelens.")}


def last_name(node: ast.expr) -> str:
    """Return the last identifier of ``a.b``, ``b[C]`` or ``b``."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def find_assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names at module level with what they are assigned."""
    blocks = [tree.body]
    for body in blocks:
        for node in body:
            blocks += [
                getattr(node, part)
                for part in ("body", "orelse")
                if isinstance(node, ast.If | ast.Try)
            ]
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None:
                yield from (
                    (target.id, value) for target in targets if isinstance(target, ast.Name)
                )


def names_changed(tree: ast.AST, owner: str | None = None) -> Iterator[str]:
    """Yield the names that something is put into or taken out of; with `owner` its attributes."""

    def names_in(node: ast.expr) -> Iterator[str]:
        if owner is None and isinstance(node, ast.Name | ast.Attribute):
            yield last_name(node)
        elif isinstance(node, ast.Attribute) and last_name(node.value) == owner:
            yield node.attr

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield from names_in(node.value)
        elif isinstance(node, ast.AugAssign):
            yield from names_in(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CHANGES:
                yield from names_in(node.func.value)
        elif owner and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from names_in(node)


def find_changing_classes(core: dict[str, Module]) -> set[str]:
    """Return the classes whose objects change after they were made."""
    return {
        node.name
        for module in core.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        and method.name not in {"__init__", "__new__", "__post_init__"}
        and any(names_changed(method, "self"))
    }


def state(core: dict[str, Module]) -> set[tuple[str, str]]:
    """Return the mutable state of modules as pairs of module and name."""
    changed_names = set()
    classes = find_changing_classes(core)
    everywhere = {
        (alias.asname or alias.name)
        for module in core.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    changes = {name: {*names_changed(module.tree)} for name, module in core.items()}
    imported = set().union(*changes.values()) & everywhere
    for where, module in core.items():
        for name, value in find_assignments(module.tree):
            made = last_name(value.func) if isinstance(value, ast.Call) else ""
            container = isinstance(value, DISPLAYS) or made in CONTAINERS
            if made in classes or (container and name in changes[where] | imported):
                changed_names.add((where, name))
        changed_names |= {
            (where, name)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Global)
            for name in node.names
        }
    return changed_names


def test_modules_of_the_core_hold_no_state(core: dict[str, Module]) -> None:
    """What lives longer than a call has an owner, which hands it down: no cache, no growing list."""
    assert state(core) == OF_THE_PROCESS


@pytest.mark.parametrize(
    "text",
    [
        "KNOWN = {}\ndef put(key): KNOWN[key] = 1",
        "KNOWN: dict = {}\ndef forget(): KNOWN.clear()",
        "KNOWN = deque()\ndef put(one): KNOWN.append(one)",
        "class Cache:\n    def put(self, key): self.made[key] = 1\nKNOWN = Cache()",
        "class Cache:\n    def put(self, rows): self.rows += rows\nKNOWN: Cache[int] = Cache[int]()",
        "FLAG = False\ndef turn():\n    global FLAG\n    FLAG = True",
    ],
)
def test_state_is_noticed(text: str, tmp_path: Path) -> None:
    """Containers that change, objects that do, and names that are bound anew."""
    assert len(state({"tracelens.one": Module("tracelens.one", tmp_path / "one.py", text)})) == 1


def test_a_table_is_no_state(tmp_path: Path) -> None:
    """A container that nothing changes is a constant."""
    text = "NAMES = {'a': 1}\ndef named(key): return NAMES[key]"
    assert state({"tracelens.one": Module("tracelens.one", tmp_path / "one.py", text)}) == set()
