"""How the library is laid out: its files and folders, who imports whom, and how deep that goes.

Counted from the source of a checkout, nothing is imported: so an older one can be counted, too.

Run: PYTHONPATH=tests python -m support.layout [--repo DIR]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "tracelens": ".",
    "tracelens_instrument": "instrument",
    "tracelens_dashboard": "dashboard",
}
LONGEST: Final = 15  # files that are printed
FULLEST: Final = 8  # folders that are printed


@dataclass(frozen=True)
class Import:
    """One module names another: when it is loaded, when a function runs, or for types alone."""

    importer: str
    imported: str
    when: str  # "load", "call", "types"


@dataclass(frozen=True)
class Module:
    """A file of the library."""

    name: str
    path: Path
    text: str

    @property
    def package(self) -> str:
        """The package in whose folder it lies."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"

    @cached_property
    def lines(self) -> int:
        """How long the file is."""
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """Its source, parsed."""
        return ast.parse(self.text)


def modules(repo: Path = ROOT) -> dict[str, Module]:
    """Find all modules of the three packages, by dotted name."""
    by_name: dict[str, Module] = {}
    for package, root in PACKAGES.items():
        for path in sorted((repo / root / package).rglob("*.py")):
            parts = path.relative_to(repo / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            by_name[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return by_name


def imports(modules: Mapping[str, Module]) -> frozenset[Import]:
    """Return who names whom among these modules, each pair once: by what is needed first."""
    first_time: dict[tuple[str, str], str] = {}
    order = ("types", "call", "load")
    for module in modules.values():
        for moment, names in _list_imports(module.tree, "load"):
            for name in names:
                target = name if name in modules else name.rpartition(".")[0]
                if target not in modules or target == module.name:
                    continue
                pair = (module.name, target)
                first_time[pair] = max(moment, first_time.get(pair, moment), key=order.index)
    return frozenset(Import(a, b, moment) for (a, b), moment in first_time.items())


def _list_imports(node: ast.AST, moment: str) -> Iterator[tuple[str, list[str]]]:
    """Walk through the import statements below a node: when they run, and what they name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield moment, [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield moment, [f"{child.module}.{alias.name}" for alias in child.names]
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _list_imports(ast.Module(child.body, []), "types")
            yield from _list_imports(ast.Module(child.orelse, []), moment)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _list_imports(child, "call" if moment == "load" else moment)
        else:
            yield from _list_imports(child, moment)


def circles(nodes: Iterable[str], out: Mapping[str, set[str]]) -> list[list[str]]:
    """Return what reaches itself (Tarjan), in the order in which all that it needs came before.

    Modules that are in no circle are lists of one.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(out.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(sorted(stack[at:]))
            del stack[at:]

    for node in nodes:
        if node not in index:
            visit(node)
    return groups


def longest_chain(nodes: Iterable[str], out: Mapping[str, set[str]]) -> list[str]:
    """Return the longest way down; a circle counts with all of its modules."""
    chains: dict[str, list[str]] = {}
    for group in circles(nodes, out):
        below = [
            chains[other] for node in group for other in out.get(node, ()) if other not in group
        ]
        way = [*group, *max(below, key=len, default=[])]
        chains.update(dict.fromkeys(group, way))
    return max(chains.values(), key=len, default=[])


def reaching(edges: Iterable[Import], *whens: str) -> dict[str, set[str]]:
    """Return what each module imports at these times."""
    out: defaultdict[str, set[str]] = defaultdict(set)
    for edge in edges:
        if edge.when in whens:
            out[edge.importer].add(edge.imported)
    return out


def files_by_folder(of: Mapping[str, Module]) -> Counter[str]:
    """Count the files of each folder."""
    return Counter(module.package for module in of.values())


def aliases(of: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the modules that define each name of a kind of array, such as `Floats`."""
    by_alias: defaultdict[str, list[str]] = defaultdict(list)
    for module in of.values():
        for node in ast.walk(module.tree) if "NDArray[" in module.text else ():
            for name, value in names_and_values(node):
                if "NDArray[" in ast.unparse(value):
                    by_alias[name].append(module.name)
    return by_alias


def constants(of: Mapping[str, Module]) -> list[tuple[str, str]]:
    """Return module and name of each upper-case name that stands for numbers."""
    return [
        (module.name, name)
        for module in of.values()
        for node in module.tree.body
        for name, value in names_and_values(node)
        if name.isupper() and is_numeric(value)
    ]


def imported_names(module: Module, of: str) -> list[str]:
    """Return what a module imports by name from another one."""
    return [
        alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == of
        for alias in node.names
    ]


def names_and_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return
    yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def is_numeric(value: ast.expr) -> bool:
    """Whether it is made of numbers alone: `0.3`, `1 << 20`, `-1`, `(5, 6, 8)`."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_numeric, value.elts))
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(is_numeric, value.values))
    if isinstance(value, ast.BinOp):
        return is_numeric(value.left) and is_numeric(value.right)
    return isinstance(value, ast.UnaryOp) and is_numeric(value.operand)


def table(repo: Path = ROOT) -> list[tuple[str, str]]:
    """Return what is worth comparing before and after a change of the layout."""
    by_name = modules(repo)
    edges = imports(by_name)
    loaded, all_ = reaching(edges, "load"), reaching(edges, "load", "call", "types")
    folder, count = max(files_by_folder(by_name).items(), key=lambda item: item[1])
    lines = [module.lines for module in by_name.values()]
    return [
        ("library files", f"{len(by_name):,}"),
        *((f"  of {name}", f"{_of_package(by_name, name):,}") for name in PACKAGES),
        ("lines", f"{sum(lines):,}"),
        ("median file, lines", f"{median(lines):.0f}"),
        ("longest file, lines", f"{max(lines)}"),
        ("files in a folder, at most", f"{count} ({folder})"),
        ("longest import chain, when loaded", f"{len(longest_chain(by_name, loaded))}"),
        ("longest import chain, with calls and types", f"{len(longest_chain(by_name, all_))}"),
        ("circles when loaded, modules in each", _sizes(circles(by_name, loaded))),
        ("circles with calls and types", _sizes(circles(by_name, all_))),
        ("definitions of Floats", f"{len(aliases(by_name).get('Floats', ()))}"),
        ("modules with underscored names", f"{sum(map(_is_underscored, by_name))}"),
        ("numeric constants of modules", f"{len(constants(by_name)):,}"),
    ]


def _of_package(of: Mapping[str, Module], package: str) -> int:
    return sum(name.split(".")[0] == package for name in of)


def _sizes(parts: list[list[str]]) -> str:
    return ", ".join(str(len(part)) for part in parts if len(part) > 1) or "none"


def _is_underscored(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__")


def longest_files(of: Mapping[str, Module]) -> list[str]:
    """Describe the longest files: is each of them one subject?"""
    found = sorted(of.values(), key=lambda module: -module.lines)[:LONGEST]
    return [f"{module.lines:4} lines  {module.name}" for module in found]


def fullest_folders(of: Mapping[str, Module]) -> list[str]:
    """Describe the fullest folders: does a newcomer see at a glance what is in them?"""
    return [f"{count:4} files  {name}" for name, count in files_by_folder(of).most_common(FULLEST)]


def main() -> None:
    """Print the table, the longest files and the fullest folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repo", type=Path, default=ROOT, help="another checkout")
    repo = parser.parse_args().repo
    by_name = modules(repo)
    lines = ["| what | number |", "|---|---|"]
    lines += [f"| {what} | {number} |" for what, number in table(repo)]
    lines += ["", "Longest files:", *longest_files(by_name)]
    lines += ["", "Fullest folders:", *fullest_folders(by_name)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
