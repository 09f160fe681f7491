"""Read the numeric constants of modules with their comments, and write docs/constants.md from them.

A constant has a comment behind it, or lines of comment directly above it:

    MIN_STEPS_FOR_STRAGGLER_TEST: Final = 30  # steps: fewer are not judged [calibrate]

That is unit, colon, decision, and in brackets what set the value. `[policy; one decision in f, C.g]`
names the functions that read it, where more than one does.

Run: PYTHONPATH=tests python -m support.constants
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.layout import ROOT, is_numeric, modules, names_and_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from support.layout import Module

__all__ = ["PAGE", "Constant", "read_all", "read_constants", "render_page", "replace_value"]

PAGE: Final = ROOT / "docs" / "constants.md"
PACKAGES: Final = (
    "tracelens.accounting",
    "tracelens.analyses",
    "tracelens.comparison",
    "tracelens.model",
    "tracelens.replay",
    "tracelens.scaling",
    "tracelens.stats",
    "tracelens.studies",
    "tracelens.verdicts",
    "tracelens.watch",
)
COMMENT: Final = re.compile(r"([^:]+): (.+) \[([^\[\];]+)(?:; one decision in ([^\[\];]+))?\]")
WHEN_IMPORTED: Final = "module"  # the reader where no function is: when the module is imported
INTRODUCTION: Final = """\
# Constants

Every number that was chosen: its unit, the test that it decides, and what set it. A constant stands in
the module that uses it, and no other test uses it. `make constants` writes this page from the comments
of the modules.

*Set by* is one of:

- **[calibrate](calibration.md)**: `make calibrate` tries other values on runs whose truth is known;
- **policy**: what is worth a sentence, what is shown, how much is done at once. No run can tell it;
- **chosen**: by hand. No script has tried other values;
- a paper, or the script that measured it.

Codes, units and sentinels decide nothing, and are left out.
[CONTRIBUTING.md](../CONTRIBUTING.md#constants) has the rules."""


@dataclass(frozen=True)
class Constant:
    """A numeric constant of a module; without a complete comment `unit` and the rest are empty."""

    module: Module
    name: str
    node: ast.expr  # of the value
    unit: str
    decision: str
    source: str
    shared_by: tuple[str, ...]  # functions that need the same decision, as the comment says
    readers: tuple[str, ...]  # functions of the module that read it

    @property
    def value(self) -> str:
        """The value as the source has it, on one line."""
        return " ".join((ast.get_source_segment(self.module.text, self.node) or "").split())

    @property
    def path(self) -> str:
        """The file of the module, as the page names it."""
        return str(self.module.path.relative_to(ROOT))

    @property
    def label(self) -> str:
        """The module without `tracelens.`, and the name."""
        return f"{self.module.name.removeprefix('tracelens.')}.{self.name}"


def read_all() -> list[Constant]:
    """Read the constants of all packages that the page lists."""
    module_by_name = modules()
    return [
        constant
        for name in sorted(module_by_name)
        if name.startswith(tuple(f"{package}." for package in PACKAGES)) or name in PACKAGES
        for constant in read_constants(module_by_name[name])
    ]


def read_constants(module: Module) -> list[Constant]:
    """Read the numeric constants of one module, in order."""
    rows = [
        (node, name, value)
        for node in module.tree.body
        for name, value in names_and_values(node)
        if name.isupper() and is_numeric(value)
    ]
    if not rows:
        return []
    comments, readers = _comments(module.text), _readers(module.tree)
    return [
        Constant(
            module, name, value, *_parse(_comment_of(node, comments)), tuple(readers.get(name, ()))
        )
        for node, name, value in rows
    ]


def replace_value(constant: Constant, text: str, value: str) -> str:
    """Return the module's source `text`, in which the constant has another value."""
    (node,) = (
        node
        for statement in ast.parse(text).body
        for name, node in names_and_values(statement)
        if name == constant.name
    )
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = b"".join(lines[:first]) + lines[first][: node.col_offset]
    after = lines[last][node.end_col_offset :] + b"".join(lines[last + 1 :])
    return (before + value.encode() + after).decode()


def render_page(constants: Iterable[Constant]) -> str:
    """Write the page: a table for each module."""
    tables: dict[str, list[str]] = {}
    for constant in constants:
        if constant.source and constant.source != "definition":
            tables.setdefault(constant.path, []).append(_row(constant))
    sections, package = [INTRODUCTION], ""
    for path, rows in tables.items():
        folder = path.split("/")[1]
        if folder != package:
            package = folder
            sections.append(f"## {package}")
        head = "| constant | value | unit | decision | set by |\n|---|---|---|---|---|"
        sections.append("\n".join((f"`{path}`:\n", head, *rows)))
    return "\n\n".join(sections) + "\n"


def _row(constant: Constant) -> str:
    words = (constant.unit, constant.decision, _set_by(constant.source))
    cells = (f"`{constant.name}`", constant.value, *words)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _set_by(source: str) -> str:
    if source == "calibrate":
        return "[calibrate](calibration.md)"
    return f"[{source}](../{source})" if source.endswith(".py") else source


def _comments(text: str) -> dict[int, tuple[str, bool]]:
    """Return the comment of each line, and whether nothing else is on that line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        token.start[0]: (token.string.lstrip("#").strip(), not token.line[: token.start[1]].strip())
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _comment_of(node: ast.stmt, comments: dict[int, tuple[str, bool]]) -> str:
    """Return the comment behind a statement; if there is none, the lines of comment directly above."""
    behind = comments.get(node.end_lineno or node.lineno)
    if behind is not None:
        return behind[0].partition("  # noqa")[0]
    comment_lines: list[str] = []
    line = node.lineno - 1
    while line in comments and comments[line][1]:
        comment_lines.insert(0, comments[line][0])
        line -= 1
    return " ".join(comment_lines)


def _parse(comment: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Return unit, decision, source, and the functions that share the decision."""
    match = COMMENT.fullmatch(comment)
    if match is None:
        return "", "", "", ()
    unit, decision, source, shared = match.groups()
    return unit, decision, source, tuple(re.split(", ?", shared)) if shared else ()


def _readers(tree: ast.Module) -> dict[str, list[str]]:
    """Return the functions that read each upper-case name, in order."""
    readers: dict[str, list[str]] = {}
    for name, reader in _reads(tree, "", inside=False):
        if reader not in readers.setdefault(name, []):
            readers[name].append(reader)
    return readers


def _reads(node: ast.AST, scope: str, *, inside: bool) -> Iterator[tuple[str, str]]:
    """Give each upper-case name that is read below a node, and the function or method around it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id.isupper():
        yield node.id, scope if inside else WHEN_IMPORTED
    if inside or not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        for child in ast.iter_child_nodes(node):
            yield from _reads(child, scope, inside=inside)
        return
    name = f"{scope}.{node.name}".strip(".")
    for child in ast.iter_child_nodes(node):  # default values are read when the module is imported
        is_body = child in node.body and not isinstance(node, ast.ClassDef)
        yield from _reads(child, name, inside=is_body)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render_page(read_all()), encoding="utf-8")


if __name__ == "__main__":
    main()
