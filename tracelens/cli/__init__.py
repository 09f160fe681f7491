"""The command line: one module a verb, and the only place where errors become exit codes."""

from __future__ import annotations

import argparse
import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracelens import __version__, containment
from tracelens.cli import bug
from tracelens.errors import MissingExtra, TraceLensError, UnusableInput
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "EXIT_CODES", "Command", "command", "main", "parse", "run"]
EXIT_CODES: Final = """\
Exit codes: 0 done (findings included), 1 a gate failed, 2 usage, 3 unusable input, 4 a missing extra,
70 a bug in TraceLens.
"""
# The verbs, each a module of this name beside this one; only the one asked for is imported.
COMMANDS: Final = (
    "record",
    "watch",
    "detail",
    "info",
    "analyze",
    "whatif",
    "compare",
    "scaling",
    "convert",
    "simulate",
    "sweep",
    "study",
    "validate",
    "index",
    "serve",
    "doctor",
    "demo",
)
OUT_OF_MEMORY_ADVICE: Final = "read a part (--ranks, --steps), or on a machine with more memory."
_EXTRA_BY_MODULE: Final = {
    "polars": "analyze",
    "rich": "analyze",
    "jsonschema": "analyze",
    "dash": "dashboard",
    "dash_mantine_components": "dashboard",
    "dash_ag_grid": "dashboard",
    "plotly": "dashboard",
    "waitress": "dashboard",
    "mpi4py": "demo",
}


class Command(Protocol):
    """What a verb's module offers; its `HELP` and `EXAMPLES` are what `--help` prints."""

    NAME: str
    HELP: str
    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the verb and return the exit code."""


def command(name: str) -> Command:
    """Import the module of a verb."""
    return cast("Command", import_module(f"{__name__}.{name}"))


def main(words: Sequence[str]) -> int:
    """Run the verb of a command line, without the program's name; return its exit code."""
    return run(parse(words))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, without the program's name."""
    verbs = words[:1] if words and words[0] in COMMANDS else COMMANDS
    return build_parser(verbs).parse_args(words)


def run(arguments: argparse.Namespace) -> int:
    """Run a verb and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that this terminal lacks letters for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run_verb(arguments)
    except (KeyboardInterrupt, SystemExit):
        raise
    except MemoryError:
        containment.end_out_of_memory()
        return _fail(UnusableInput(f"There was no more memory: {OUT_OF_MEMORY_ADVICE}"))
    except BaseException as error:  # noqa: BLE001 - nothing comes after; polars' panics are no Exception
        return bug.report(error)


def _run_verb(arguments: argparse.Namespace) -> int:
    """Run the verb; an expected failure becomes one sentence and an exit code."""
    try:
        if getattr(arguments, "limit", None):
            import_module("tracelens.cli.runs").raise_limits(arguments.limit)
        if getattr(arguments, "no_keep", False):
            with import_module("tracelens.distil.places").keeping_nothing():
                exit_code: int = arguments.run(arguments)
        else:
            exit_code = arguments.run(arguments)
    except TraceLensError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        extra = _EXTRA_BY_MODULE.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        return _fail(MissingExtra.from_extra(f"`tracelens {arguments.verb}`", extra))
    except BrokenPipeError:  # `tracelens analyze DIR | head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder without permission
        if error.errno is None:
            raise
        file_text = f" '{shown_name(error.filename)}'" if isinstance(error.filename, str) else ""
        return _fail(TraceLensError(f"The system refused{file_text}: {error.strerror}."))
    except KeyboardInterrupt:
        return 130  # as a shell's of a command that Ctrl-C ended
    return exit_code


def build_parser(verb_names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser of some verbs: all of them where none is asked for."""
    parser = argparse.ArgumentParser(
        prog="tracelens",
        description="Find where distributed training loses its time.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tracelens {__version__}")
    verb_parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb_module in map(command, verb_names):
        verb_parser = verb_parsers.add_parser(
            verb_module.NAME,
            help=verb_module.HELP,
            description=verb_module.HELP,
            epilog=f"examples:\n{verb_module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb_module.configure(verb_parser)
        verb_parser.set_defaults(run=verb_module.run)
    return parser


def _fail(error: TraceLensError) -> int:
    """Write the error on one line: names that it quotes may hold line breaks and control characters."""
    characters = (
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(error)
    )
    sys.stderr.write(f"tracelens: {''.join(characters)}\n")
    return error.exit_code
