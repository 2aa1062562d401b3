"""What a source of records must provide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

#: Type and trailing shape of columns.
Kinds = dict[str, tuple[np.dtype, tuple[int, ...]]]


@runtime_checkable
class RecordSource(Protocol):
    """Rows of columns of numbers, wherever they are: ``Records(source)`` takes any object with these five members.

    Arrays in memory and Parquet files are such sources; a format that they do not cover needs a class like the one
    below. Columns hold booleans, integers or floats without missing values. Rows have a fixed order: those of
    :meth:`blocks`, one after the other, are numbered from 0. Sources of :class:`~pymc_dp.Shards`, and of chains in
    several processes, must be picklable. Messages of errors must not show values.

    Attributes
    ----------
    n_records : int
        Number of rows.
    layout : dict
        Names of columns to ``(dtype, trailing shape)``.

    Examples
    --------
    >>> class Squares:
    ...     def __init__(self, begin, end):
    ...         self.begin, self.n_records = begin, end - begin
    ...         self.layout = {"y": (np.dtype(float), ())}
    ...
    ...     def blocks(self, n_rows):
    ...         for k in range(0, self.n_records, n_rows):
    ...             yield self.take(np.arange(k, min(k + n_rows, self.n_records)))
    ...
    ...     def take(self, index):
    ...         return {"y": (self.begin + index) ** 2.0}
    ...
    ...     def split(self, n):
    ...         cuts = [self.begin + k * self.n_records // n for k in range(n + 1)]
    ...         return [Squares(*pair) for pair in zip(cuts[:-1], cuts[1:])]
    >>> dp.Records(Squares(0, 10**6)).take([999_999])["y"]
    array([9.99998e+11])
    """

    @property
    def n_records(self) -> int:
        """Number of rows."""

    @property
    def layout(self) -> Kinds:
        """Names of columns to ``(dtype, trailing shape)``."""

    def blocks(self, n_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Successive rows, at most `n_rows` at a time: for each column an array with a row per record."""

    def take(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows by number, a vector of int64 in any order, also repeatedly."""

    def split(self, n: int) -> Sequence[RecordSource]:
        """`n` sources that have all rows together, in their order, and at least one each."""
