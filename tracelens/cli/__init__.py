"""The command line: one module a verb, and the only place where errors become exit codes."""

from __future__ import annotations

import argparse
import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tracelens import __version__, containment
from tracelens.cli import bug
from tracelens.errors import MissingExtra, TraceLensError
from tracelens.model.fmt import shown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "EXIT_CODES", "Command", "command", "main"]
EXIT_CODES: Final = """\
Exit codes: 0 done (findings included), 1 a gate failed, 2 usage, 3 unusable input, 4 a missing extra,
70 a bug in TraceLens.
"""
# The verbs, each a module of this name beside this one; only the one asked for is imported.
COMMANDS: Final = (
    "record",
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
_EXTRA_OF: Final = {
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; `argv` without the program's name."""
    given = sys.argv[1:] if argv is None else argv
    verbs = given[:1] if given and given[0] in COMMANDS else COMMANDS
    arguments = build_parser(verbs).parse_args(given)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that this terminal lacks letters for
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _tried(arguments)
    except (KeyboardInterrupt, SystemExit):
        raise
    except MemoryError as error:
        containment.out_of_memory()
        return bug.report(error)
    except BaseException as error:  # noqa: BLE001 - nothing comes after; polars' panics are no Exception
        return bug.report(error)


def _tried(arguments: argparse.Namespace) -> int:
    """Run the verb; an expected failure becomes one sentence and an exit code."""
    try:
        if getattr(arguments, "limit", None):
            import_module("tracelens.cli.opening").raise_limits(arguments.limit)
        if getattr(arguments, "no_keep", False):
            with import_module("tracelens.distil.places").keeping_nothing():
                code: int = arguments.run(arguments)
        else:
            code = arguments.run(arguments)
    except TraceLensError as error:
        return _fail(error)
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        return _fail(MissingExtra.naming(f"`tracelens {arguments.verb}`", extra))
    except BrokenPipeError:  # `tracelens analyze DIR | head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder without permission
        if error.errno is None:
            raise
        where = f" '{shown_name(error.filename)}'" if isinstance(error.filename, str) else ""
        return _fail(TraceLensError(f"The system refused{where}: {error.strerror}."))
    except KeyboardInterrupt:
        return 130
    return code


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser of some verbs: all of them where none is asked for."""
    parser = argparse.ArgumentParser(
        prog="tracelens",
        description="Find where distributed training loses its time.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tracelens {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for found in map(command, names):
        verb = verbs.add_parser(
            found.NAME,
            help=found.HELP,
            description=found.HELP,
            epilog=f"examples:\n{found.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.configure(verb)
        verb.set_defaults(run=found.run)
    return parser


def _fail(error: TraceLensError) -> int:
    sys.stderr.write(f"tracelens: {error}\n")
    return error.exit_code
