"""Columns in memory, and in files that are mapped into it."""

from __future__ import annotations

import mmap

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from pymc_dp.data.columns import Kinds, as_column, number_type


def table_of(columns: Any) -> tuple[list[str], list[Any]]:
    """Names of the columns of a table, and their keys in it; TypeError unless it is a table."""
    if isinstance(columns, Mapping):
        keys = list(columns)
    elif hasattr(columns, "column_names"):  # Arrow
        keys = list(columns.column_names)
    elif hasattr(columns, "shape") and hasattr(columns, "columns"):  # pandas, Polars
        keys = list(columns.columns)
    else:
        raise TypeError(
            f"columns must map names to arrays, as a dict, a DataFrame or an Arrow table does, got {type(columns).__name__}."
        )
    return [str(key) for key in keys], keys


class InMemory:
    """Columns of equal length; ValueError unless all are complete and numeric."""

    description = "in memory"

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = {name: as_column(name, column) for name, column in arrays.items()}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"The columns must have the same number of rows, but {found}.")
        self.n_rows = next(iter(lengths.values()))
        if not self.n_rows:
            raise ValueError("The columns have no rows: give one record at least.")

    @property
    def kinds(self) -> Kinds:
        """Type and trailing shape of each column."""
        return {n: (number_type(n, a.dtype, ""), a.shape[1:]) for n, a in self.arrays.items()}

    def batches(self, n_rows: int) -> Generator[dict[str, np.ndarray]]:
        """Views of successive rows."""
        for begin in range(0, self.n_rows, n_rows):
            yield {name: array[begin : begin + n_rows] for name, array in self.arrays.items()}

    def cuts(self, n: int) -> list[int]:
        """Row numbers that divide the rows into `n` ranges."""
        return [k * self.n_rows // n for k in range(n + 1)]

    def part(self, begin: int, end: int) -> InMemory:
        """Rows of a range."""
        return InMemory({name: array[begin:end] for name, array in self.arrays.items()})

    def take(self, index: np.ndarray, n_rows: int) -> dict[str, np.ndarray]:
        """Rows by number."""
        return {name: array[index] for name, array in self.arrays.items()}

    def __reduce__(self) -> Any:
        return _restored, ({name: _place(array) or array for name, array in self.arrays.items()},)


def _place(array: np.ndarray) -> tuple[Any, ...] | None:
    """File position of a mapped array, which NumPy would pickle with its content; None if the file does not hold it."""
    mapping = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or not (mapping and array.filename) or array.mode == "c":
        return None
    # A slice has the offset of the array that it is taken from: addresses tell where it begins.
    low, high = np.lib.array_utils.byte_bounds(array)
    skipped = low - np.frombuffer(mapping, np.uint8).ctypes.data
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + skipped
    first = array.ctypes.data - low  # not 0 if a stride is negative
    return str(array.filename), begin, high - low, array.shape, array.dtype, first, array.strides


def _restored(arrays: dict[str, Any]) -> InMemory:
    for name, place in arrays.items():
        if isinstance(place, tuple):
            path, begin, size, shape, dtype, first, strides = place
            content = np.memmap(path, np.uint8, "r", begin, (size,))
            arrays[name] = np.ndarray(shape, dtype, content, first, strides)
    return InMemory(arrays)
