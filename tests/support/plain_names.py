"""Measure names: the share of locals and functions whose name is no noun and no verb.

A name such as `found` or `_joined` does not say what a value is or what a function does. A local
counts if it lives for four lines or more. To list them: python tests/support/plain_names.py FOLDER
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_VAGUE_WORDS: Final = """
one each every some mine theirs ours whole half found known unknown given wanted asked said shown
named called kept taken there here own part parts place places at by of off on how what who whom
which when why now then more most less least rest remaining other others same both first last next
begin begun made held seen met chosen lacking left tried told spent counted moved words word above
below inside outside beyond fresh again away before after former later earlier many few much
enough so such that this these those it its thing things stuff beside between since until without
usual typical good bad better best worst come comes goes gone gives got puts lets says tells stays
stands lies takes holds means asks
"""
_VAGUE_FUNCTIONS: Final = """
joined opened closed gathered noted marked placed ordered numbered summed added cut split merged
matched drawn shared needed used lost gained saved paid priced judged weighed measured timed
aligned divided bound tied linked followed awaited blocked hidden narrowed widened settled
finished started stopped ended changed replaced renamed repaired checked tested planned filtered
picked like unlike about around across along among against within
"""
# Pronouns, participles, prepositions and adverbs: as the whole name of a value they say nothing.
VAGUE_WORDS: Final = frozenset(_VAGUE_WORDS.split())
# As the whole name of a function, these say neither what it does nor what it returns.
VAGUE_FUNCTIONS: Final = (VAGUE_WORDS - {"begin"}) | frozenset(_VAGUE_FUNCTIONS.split())
LINES_OF_SHORT_LIFE: Final = 3  # lines: a comprehension or a two-line loop needs no long name
VAGUE_DOCSTRING: Final = re.compile(r"Return (?:what|how|whether|where|who|which|of)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Names:
    """Counts of one folder, and each vague name with its file and line."""

    local_count: int = 0
    function_count: int = 0
    docstring_count: int = 0
    vague_locals: list[str] = field(default_factory=list)
    vague_functions: list[str] = field(default_factory=list)
    vague_docstrings: list[str] = field(default_factory=list)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Shares of locals, functions and docstrings that are vague, 0 to 1."""
        return (
            len(self.vague_locals) / max(self.local_count, 1),
            len(self.vague_functions) / max(self.function_count, 1),
            len(self.vague_docstrings) / max(self.docstring_count, 1),
        )


def measure_names(folder: Path) -> Names:
    """Measure the names of all Python files below a folder."""
    names = Names()
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                _count_docstring(names, node, path)
            if isinstance(node, Function):
                _count_function(names, node, path)
    return names


def _count_docstring(names: Names, node: Function | ast.ClassDef | ast.Module, path: Path) -> None:
    docstring = ast.get_docstring(node)
    if docstring:
        names.docstring_count += 1
        if VAGUE_DOCSTRING.match(docstring):
            names.vague_docstrings.append(f"{path}: {docstring.splitlines()[0]}")


def _count_function(names: Names, function: Function, path: Path) -> None:
    names.function_count += 1
    is_special = function.name.startswith("__")
    if not is_special and function.name.strip("_") in VAGUE_FUNCTIONS:
        names.vague_functions.append(f"{path}:{function.lineno}: {function.name}")
    for name, lines in _find_locals(function):
        names.local_count += 1
        if name.strip("_") in VAGUE_WORDS and max(lines) - min(lines) >= LINES_OF_SHORT_LIFE:
            names.vague_locals.append(f"{path}:{min(lines)}: {name} in {function.name}")


def _find_locals(function: Function) -> Iterator[tuple[str, list[int]]]:
    """Yield parameters and assigned names of a function, each with the lines on which it is used."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    assigned = {parameter.arg for parameter in parameters} - {"self", "cls"}
    lines: dict[str, list[int]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            lines.setdefault(node.id, []).append(node.lineno)
            if isinstance(node.ctx, ast.Store):
                assigned.add(node.id)
    for name in sorted(assigned):
        yield name, lines.get(name, [function.lineno])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        found_names = measure_names(Path(argument))
        listing = [*found_names.vague_locals, *found_names.vague_functions]
        sys.stdout.write("\n".join([*listing, *found_names.vague_docstrings]) + "\n")
        sys.stdout.write(
            f"{argument}: {', '.join(f'{share:.1%}' for share in found_names.shares)}\n"
        )
