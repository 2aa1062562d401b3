"""Columns in memory, from arrays and Arrow streams, and in files that are mapped into it."""

from __future__ import annotations

import itertools
import mmap

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymc_dp.data.columns import arrow_type, arrow_values, missing, number_type
from pymc_dp.data.source import Kinds


def table_of(columns: Any) -> list[tuple[str, Any]]:
    """Names and columns of a mapping, a data frame of pandas, or what has an Arrow stream; TypeError for all else."""
    is_frame = hasattr(columns, "items") and hasattr(columns, "columns")  # NaN is a number there
    if isinstance(columns, Mapping) or is_frame:
        return [(str(name), column) for name, column in columns.items()]
    if not hasattr(columns, "__arrow_c_stream__"):
        raise TypeError(
            "columns must map names to arrays, as a dict, a DataFrame or what has an Arrow stream (__arrow_c_stream__) does, "
            f"got {type(columns).__name__}."
        )
    table = _from_arrow("The table", "table", columns)
    return list(zip(table.column_names, table.columns, strict=True))


def _from_arrow(what: str, kind: str, given: Any) -> Any:
    """A table or column of pyarrow. The text of errors is withheld: it may have values."""
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(
            f"{what} is no NumPy array: pyarrow is needed to read it, which pymc-dp has in its extra 'parquet'."
        ) from None
    try:
        return getattr(pa, kind)(given)
    except Exception as error:
        raise ValueError(
            f"{what} cannot be read by Arrow from a {type(given).__name__} ({type(error).__name__}; its message is withheld): make it NumPy arrays."
        ) from None


class InMemory:
    """Columns of equal length; ValueError unless all are complete and numeric."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: _as_column(name, column) for name, column in arrays.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"The columns must have the same number of rows, but {found}.")
        self.n_records = next(iter(lengths.values()))
        if not self.n_records:
            raise ValueError("The columns have no rows: give one record at least.")

    def __str__(self) -> str:
        return "in memory"

    @property
    def layout(self) -> Kinds:
        """Type and trailing shape of each column."""
        return {n: (number_type(n, a.dtype, ""), a.shape[1:]) for n, a in self._arrays.items()}

    def blocks(self, n_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Views of successive rows."""
        for begin in range(0, self.n_records, n_rows):
            yield {name: array[begin : begin + n_rows] for name, array in self._arrays.items()}

    def take(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows by number."""
        return {name: array[index] for name, array in self._arrays.items()}

    def split(self, n: int) -> list[InMemory]:
        """Ranges of rows of equal length, up to one."""
        cuts = itertools.pairwise(k * self.n_records // n for k in range(n + 1))
        return [InMemory({name: a[i:j] for name, a in self._arrays.items()}) for i, j in cuts]

    def __reduce__(self) -> Any:
        return _restored, ({name: _place(array) or array for name, array in self._arrays.items()},)


def _as_column(name: str, column: Any) -> np.ndarray:
    """A column as an array of numbers with a row per record; ValueError if impossible."""
    if isinstance(column, np.ma.MaskedArray):
        if np.ma.is_masked(column):
            raise missing(name)
        column = column.data
    elif not isinstance(getattr(column, "dtype", None), np.dtype):
        kinds = {"__arrow_c_stream__": "chunked_array", "__arrow_c_array__": "array", "isna": "array"}  # fmt: skip
        if kind := next((kind for method, kind in kinds.items() if hasattr(column, method)), None):
            column = _from_arrow(f"Column {name!r}", kind, column)
            arrow_type(name, column.type)
            column = arrow_values(name, column)
    try:
        array = np.asanyarray(column)  # a memmap stays one
    except (TypeError, ValueError):
        raise ValueError(f"Column {name!r} is not an array: make it one.") from None
    number_type(name, array.dtype, array.dtype.type.__name__)
    if array.ndim == 0 or 0 in array.shape[1:]:
        raise ValueError(
            f"Column {name!r} has the shape {array.shape}: give one number, or more, per record."
        )
    return array


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
