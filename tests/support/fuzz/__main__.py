"""Damages what readers read, and watches: `make fuzz`, or python -m support.fuzz --help.

Every kind of file gets so many inputs, those of earlier runs of the same program counted in. What
fails is kept in .fuzz/failing; `--replay FILE...` reads it again, with all verbs. `--guided` has
atheris choose.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from support.fuzz.pieces import JOURNAL, KEPT, Piece, guided_piece, next_of, run_piece
from support.fuzz.published import publish
from support.fuzz.subjects import SUBJECTS

PIECE: Final = 500  # inputs


def main() -> int:
    """Do what is asked; 1 if an input failed."""
    asked = _arguments()
    if asked.replay:
        return _replay(asked.replay)
    failed = 0
    end = time.monotonic() + asked.minutes * 60
    if asked.publish:
        publish(asked.journal)
        return 0
    for subject, count in _turns(asked):
        if time.monotonic() > end:
            break
        seed = next_of(subject, asked.journal, guided=asked.guided)
        try:
            piece = (guided_piece if asked.guided else run_piece)(subject, count, seed)
        except RuntimeError as error:
            sys.exit(str(error))
        failed += len(piece.failures)
        _noted(piece, asked.journal)
    return 1 if failed else 0


def _turns(asked: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the pieces that are missing until each kind has `inputs`: the kind, and its next inputs.

    The kind that lacks most comes first.
    """
    names = asked.subjects or list(SUBJECTS)
    left = {n: asked.inputs - next_of(n, asked.journal, guided=asked.guided) for n in names}
    turns = [(left[n] - done, n) for n in names for done in range(0, left[n], PIECE)]
    return [(name, min(missing, PIECE)) for missing, name in sorted(turns, reverse=True)]


def _noted(piece: Piece, journal: Path) -> None:
    journal.parent.mkdir(exist_ok=True)
    with journal.open("a") as file:
        file.write(json.dumps(piece.row()) + "\n")
    row = piece.row()
    print(f"{piece.subject:16}{row['first']:8,} +{row['count']:5,}  {row['became']}", flush=True)  # noqa: T201
    for number, text in piece.failures.items():
        with (KEPT / "failures.txt").open("a") as file:
            file.write(f"== {piece.subject} {number}\n{text}\n")
        print(f"  {piece.subject} {number}: {text.strip().splitlines()[-1]}", flush=True)  # noqa: T201


def _replay(files: list[Path]) -> int:
    """Read files again that failed, here and with all verbs; a crash ends this process."""
    from support.fuzz.judge import Failure, Judge  # noqa: PLC0415 - needs all readers

    code = 0
    for file in files:
        name = file.parent.name if file.parent.name in SUBJECTS else file.name.split("-")[0]
        with tempfile.TemporaryDirectory() as folder:
            judge = Judge(SUBJECTS[name], Path(folder))
            for number in (1, 0):
                try:
                    outcome = judge.look(file.resolve().read_bytes(), number)
                except Failure as failure:
                    code, outcome = 1, str(failure)
                sys.stdout.write(f"{file}: {outcome}\n")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="KIND", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument(
        "--inputs", type=int, default=2000, help="a kind in all, those in the journal too"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no piece begins")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument(
        "--guided", action="store_true", help="inputs are chosen by what they reach"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write docs/reliability.md, and no more"
    )
    parser.add_argument(
        "--replay", type=lambda text: Path(text).absolute(), nargs="+", metavar="FILE"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
