"""Follows the side file of a running process: each line is read once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.conversion.definitions import TYPES, UNKNOWN, tabulate_definitions
from tracelens.errors import NotATrace
from tracelens.schema.gate import open_regular
from tracelens.schema.side import parse_lines
from tracelens.schema.vocabulary import COLLECTIVES, SIDE_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.arrays import Flags, Int8s, Int32s, UInt32s
    from tracelens.conversion.definitions import DefinitionTable
    from tracelens.schema.endings import Ending
    from tracelens.schema.side import ClockReading, Communicator, Definition, DetailChange, Process

__all__ = ["LiveSide"]

_SPAN: Final = TYPES.index("span")


class LiveSide:
    """What a process has said of itself so far.

    `clock` is its last reading of both clocks, null before the first; `is_complete` says that it ended
    its recording itself. `ending` is what ended it by its own note: an exception, or its exit.
    `communicators` are by the process' own numbers, `detail_changes` by time.
    """

    def __init__(self, folder: Path) -> None:
        """Read the lines that there are.

        Raises:
            NotATrace: there is no process line (yet), or it is no side file.
            NewerVersion: a newer TraceLens wrote it.
            OSError: it cannot be read, or is not there.
        """
        self._file = open_regular(folder / SIDE_FILE, "side")
        self._process_line = b""
        self._rest = b""
        self._definitions: dict[int, Definition] = {}
        self.meanings: DefinitionTable = tabulate_definitions(())
        self.kinds: list[str] = []
        self.in_flight_threads: set[int] = set()
        self.communicators: dict[int, Communicator] = {}
        self.clock: ClockReading | None = None
        self.detail_changes: list[DetailChange] = []
        self.is_complete = False
        self.ending: Ending | None = None
        self.process: Process
        self.read_on()
        if not self._process_line:
            self._file.close()
            raise NotATrace("its side file names no process yet")

    def read_on(self) -> None:
        """Read the lines that were added since."""
        content = self._rest + self._read_rest()
        *lines, self._rest = content.split(b"\n")
        if not lines:
            return
        process_lines = [line for line in lines if line.startswith(b'{"table":"process"')]
        self._process_line = process_lines[-1] if process_lines else self._process_line
        if not self._process_line:
            return
        tables = parse_lines([*lines, self._process_line])
        self.process = tables.process
        self.is_complete |= tables.complete
        self.ending = next((row for row in tables.endings if _ends_process(row)), self.ending)
        self.communicators |= {
            group.index: group for group in tables.communicators if _is_sound(group)
        }
        self.in_flight_threads |= {
            row.index for row in tables.threads if row.in_flight and isinstance(row.index, int)
        }
        self.detail_changes += [row for row in tables.details if isinstance(row.at_ns, int)]
        readings = [reading for reading in tables.clocks if reading.method == "local"]
        self.clock = readings[-1] if readings else self.clock
        if tables.definitions:
            for definition in tables.definitions:
                if isinstance(definition.id, int):
                    self._definitions.setdefault(definition.id, definition)
            self.meanings = tabulate_definitions(self._definitions.values())
            self.kinds = [str(word) for word in self.meanings.kind.words.to_pylist()]

    def find_spans(self, definition_ids: UInt32s) -> Flags:
        """Return True for each definition number of spans."""
        if not len(definition_ids):
            return np.zeros(0, np.bool_)
        rows = self.meanings.find_rows(definition_ids)
        if (rows == UNKNOWN).any():
            self.read_on()
            rows = self.meanings.find_rows(definition_ids)
        return np.asarray(self.meanings.type_codes[rows] == _SPAN)

    def definition_of(self, definition_id: int) -> Definition | None:
        """Return a definition by its number."""
        return self._definitions.get(definition_id)

    def op_codes(self, rows: Int32s) -> Int8s:
        """Return places in `COLLECTIVES` for rows of `meanings`, -1 for what is no collective."""
        words = [str(word) for word in self.meanings.op.words.to_pylist()]
        code_of_word = [COLLECTIVES.index(word) if word in COLLECTIVES else -1 for word in words]
        return np.array([*code_of_word, -1], np.int8)[self.meanings.op.codes[rows]]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_rest(self) -> bytes:
        chunks = []
        while chunk := self._file.read(io.DEFAULT_BUFFER_SIZE):
            chunks.append(chunk)
        return b"".join(chunks)


def _ends_process(ending: Ending) -> bool:
    """Return True for what ended the process, and not a thread, if it has the types it should have."""
    texts = (ending.cause, ending.message, ending.user_frame or "")
    return ending.thread is None and all(isinstance(text, str) for text in texts)


def _is_sound(group: Communicator) -> bool:
    """Return True if a communicator has the types that it should have."""
    return (
        isinstance(group.index, int)
        and isinstance(group.uid, str)
        and isinstance(group.name, str)
        and isinstance(group.ranks, list)
        and all(isinstance(rank, int) for rank in group.ranks)
    )
