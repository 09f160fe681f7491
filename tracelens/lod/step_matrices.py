"""Matrices with a value for each step and rank, in one Arrow file; a read decodes only some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from tracelens.arrays import Array

VALUES_PER_BATCH: Final = 1 << 16  # values of a matrix: decoded together
_WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")


def save_matrices(file: Path, matrices: Mapping[str, Array]) -> None:
    """Write matrices of one shape, [step, rank]: a column each, and a record batch for some steps."""
    step_count, rank_count = next(iter(matrices.values())).shape
    schema = pa.schema(
        {name: pa.from_numpy_dtype(matrix.dtype) for name, matrix in matrices.items()}
    )
    steps_per_batch = _steps_per_batch(rank_count)
    with pa.ipc.new_file(str(file), schema, options=_WRITE_OPTIONS) as writer:
        for first_step in range(0, step_count, steps_per_batch):
            columns = [
                pa.array(matrix[first_step : first_step + steps_per_batch].ravel())
                for matrix in matrices.values()
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def load_matrices(file: Path, step_count: int, rank_count: int) -> dict[str, StepMatrix]:
    """Open what `save_matrices` wrote; nothing is decoded yet.

    Raises:
        OSError: the file is missing.
        ValueError: the file is cut short.
    """
    content = pa.memory_map(str(file)).read_buffer()
    with pa.ipc.open_file(content) as reader:
        columns = {name: index for index, name in enumerate(reader.schema.names)}
    shape = step_count, rank_count
    return {name: StepMatrix(content, index, shape) for name, index in columns.items()}


@dataclass(frozen=True, eq=False)
class StepMatrix:
    """A matrix on disk, [step, rank]: a column of an Arrow file, read by slices of steps."""

    content: pa.Buffer
    column: int
    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> Array:
        """Return some steps, [step, rank]; only their record batches are decoded."""
        step_count, rank_count = self.shape
        begin_step, end_step, stride = key.indices(step_count)
        end_step = max(begin_step, end_step)
        steps_per_batch = _steps_per_batch(rank_count)
        first_batch = begin_step // steps_per_batch
        options = pa.ipc.IpcReadOptions(included_fields=[self.column], use_threads=False)
        with pa.ipc.open_file(self.content, options=options) as reader:
            batches = [
                reader.get_batch(index)
                for index in range(first_batch, -(-end_step // steps_per_batch))
            ]
            table: Any = pa.Table.from_batches(batches, reader.schema)
        values: Array = table.column(0).to_numpy()
        matrix = values.reshape(len(values) // max(rank_count, 1), rank_count)
        first_step = first_batch * steps_per_batch
        return np.asarray(matrix[begin_step - first_step : end_step - first_step : stride])


def _steps_per_batch(rank_count: int) -> int:
    return max(VALUES_PER_BATCH // max(rank_count, 1), 1)
