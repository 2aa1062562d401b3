"""Records: a table of private records that need not fit into memory."""

from __future__ import annotations

import copy

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_integer
from pymc_dp.data.columns import Arguments, in_words, rows_of, used_columns
from pymc_dp.data.in_memory import InMemory, table_of
from pymc_dp.data.parquet import open_parquet
from pymc_dp.data.source import RecordSource


class Records:
    """Private records, a row each, which are read in blocks of bounded memory.

    Columns hold numbers without missing values. Floats, integers and booleans keep their type; NaN is a number, also
    in pandas. Errors show names, types and shapes of columns, and no values.

    Parameters
    ----------
    columns : mapping of str to array, DataFrame, table with an Arrow stream, or RecordSource
        Columns in memory, of shape ``(n_records,)`` or ``(n_records, ...)``: arrays of NumPy, also those that are
        mapped from files (``numpy.memmap``), a data frame of pandas, or any table with ``__arrow_c_stream__`` (of
        Polars, Arrow, DuckDB, ...), which is read once. Columns are not copied, except for those of Arrow in several
        chunks. For Parquet files see :meth:`from_parquet`, for all else :class:`~pymc_dp.data.RecordSource`.
    arguments : mapping of str to str or list of str, optional
        Names of the model's ``pm.Data`` to the columns that they stand for, such as
        ``{"X": ["x1", "x2"], "y": "y"}``. A list of columns is a matrix of shape ``(n_records, len(list))`` of
        float64, or of float32 if all of its columns are; integers above 2**53 are rounded in it. Other columns are
        not read. By default each column is one of its own name.
    block_rows : int, optional
        Largest number of rows of a block; by default about 2**21 bytes, in multiples of 64.
    single_precision : bool
        Whether floats are rounded to float32 as they are read, and so are all columns of a matrix; False by default.
        The rounded numbers, of 24 bits, are then the data: see the notes.

    Attributes
    ----------
    n_records : int
        Number of rows, each of which is a record.
    block_rows : int
        Largest number of rows of a block.
    layout : dict
        Names of arguments to ``(dtype, trailing shape)``.

    Raises
    ------
    TypeError
        If `columns` or `arguments` is no mapping or table, or `block_rows` no integer.
    ValueError
        If there are no records, a column does not hold numbers or has missing values, columns differ in length or
        share a name, `arguments` has an unknown column, or `block_rows` is below 1.

    Notes
    -----
    With `single_precision` each number changes by a factor within ``1 +- 2**-24`` (6e-8); above 3.4e38 it becomes
    infinite, below 1e-38 it loses digits, and integers above 2**24 in a matrix are rounded. What a record contributes is
    computed from these numbers alone, in float64, and rounded to the same grid. So sums are exact whole numbers, with the
    same sensitivity. They are those of columns of float64 that hold the rounded numbers, and not those of the columns
    themselves. Digests, by which budgets recognise the data, depend on the type: what is read with this option and without
    it is not recognised as the same data, so spend on both from one ledger.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> columns = {
    ...     "x1": np.arange(5.0),
    ...     "x2": np.ones(5),
    ...     "y": np.arange(5),
    ...     "note": list("abcde"),
    ... }
    >>> records = dp.Records(columns, arguments={"X": ["x1", "x2"], "y": "y"}, block_rows=2)
    >>> records
    Records(5 records; X: float64 (2,), y: int64; blocks of 2 rows, in memory)
    >>> [block["X"].shape for block in records.blocks()]
    [(2, 2), (2, 2), (1, 2)]
    >>> records.take([4, 0])["y"]
    array([4, 0])
    >>> [piece.n_records for piece in records.split(2)]
    [2, 3]
    """

    def __init__(
        self,
        columns: Any,
        *,
        arguments: Mapping[str, str | Sequence[str]] | None = None,
        block_rows: int | None = None,
        single_precision: bool = False,
    ) -> None:
        source = columns
        if not isinstance(source, RecordSource):
            table = table_of(columns)
            used = used_columns(arguments, [name for name, _ in table])
            source = InMemory({name: dict(table)[name] for name in used})
        self._source, self.n_records = source, source.n_records
        self._arguments = Arguments(arguments, source.layout, single_precision)
        if block_rows is None:
            block_rows = self._arguments.block_rows
        self.block_rows = as_integer("block_rows", block_rows, 1)

    @classmethod
    def from_parquet(
        cls,
        path: Any,
        *,
        arguments: Mapping[str, str | Sequence[str]] | None = None,
        block_rows: int | None = None,
        single_precision: bool = False,
    ) -> Records:
        """Records in Parquet files, which are read block by block.

        Parameters
        ----------
        path : path or sequence of paths
            A local file, several, or a folder of files, which are read in the order of their names. Files of a
            folder whose names begin with a dot or an underscore are left out. Files must have the same columns.
        arguments, block_rows, single_precision
            Columns of each name of the model, rows of a block, and whether floats are rounded: see :class:`Records`.

        Returns
        -------
        Records

        Raises
        ------
        ImportError
            If pyarrow is missing.
        FileNotFoundError
            If there is no such file.
        OSError
            If a file cannot be read.
        ValueError
            As of :class:`Records`, and if files have different columns. Missing values are found while reading: a
            likelihood reads all columns once, before anything is spent.
        """
        options: dict[str, Any] = {"block_rows": block_rows, "single_precision": single_precision}
        return cls(open_parquet(path, arguments), arguments=arguments, **options)

    @property
    def layout(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Names of arguments to ``(dtype, trailing shape)``."""
        return dict(self._arguments.layout)

    def __repr__(self) -> str:
        source = f"blocks of {self.block_rows} rows, {self._source}"
        return f"Records({self.n_records} records; {in_words(self.layout)}; {source})"

    def blocks(self) -> Generator[dict[str, np.ndarray]]:
        """Successive blocks of all records, in their order.

        A thread reads one block ahead. It ends with the iterator: after the last block, an error, or ``close()``.

        Yields
        ------
        dict of str to array
            For each argument a contiguous array of shape ``(n, ...)``, `n` at most ``block_rows``, and fewer at the
            end of files and row groups. It may be a view of a column in memory: do not write to it.

        Raises
        ------
        OSError, RuntimeError, ValueError
            If a file cannot be read, has changed, or has missing values.
        """
        blocks = map(self._arguments.of, self._source.blocks(self.block_rows))
        if self.n_records <= self.block_rows:
            yield from blocks
            return
        # No thread may live on: a process with threads cannot be forked safely.
        with ThreadPoolExecutor(1, "pymc_dp records") as reader:
            ahead = reader.submit(next, blocks, None)
            while (block := ahead.result()) is not None:
                ahead = reader.submit(next, blocks, None)
                yield block

    def split(self, n: int) -> list[Records]:
        """Pieces that have all records together, in their order, such as for several processes.

        A pickled piece has the rows of arrays, but only the names of mapped files and of Parquet files.

        Parameters
        ----------
        n : int
            Number of pieces. In memory they are of equal length, up to one row. Those of Parquet files are whole
            row groups; with more pieces than row groups they are parts of these, and each reads, and skips, the
            rows before its own in a row group.

        Returns
        -------
        list of Records

        Raises
        ------
        ValueError
            If `n` is below 1 or above the number of records.
        """
        n = as_integer("n", n, 1)
        if n > self.n_records:
            raise ValueError(
                f"{self.n_records} records cannot be split into {n} pieces: ask for fewer."
            )
        pieces = []
        for source in self._source.split(n):
            piece = copy.copy(self)
            piece._source, piece.n_records = source, source.n_records
            pieces.append(piece)
        return pieces

    def take(self, index: npt.ArrayLike) -> dict[str, np.ndarray]:
        """Records by number.

        From Parquet files, the row groups that have one are read.

        Parameters
        ----------
        index : array_like of integers, shape (n,)
            From 0, in any order, also repeatedly.

        Returns
        -------
        dict of str to array
            For each argument an array of shape ``(n, ...)``, in the order of `index`.

        Raises
        ------
        IndexError
            If it is no vector of integers in this range.
        OSError, RuntimeError, ValueError
            As of :meth:`blocks`.
        """
        numbers = np.asarray(index)
        if not numbers.size:
            numbers = numbers.astype(np.int64)
        if (
            numbers.ndim != 1
            or numbers.dtype.kind not in "iu"
            or (numbers.size and not 0 <= numbers.min() <= numbers.max() < self.n_records)
        ):
            raise IndexError(
                f"index must be a vector of whole numbers from 0 to {self.n_records - 1}."
            )
        return self._arguments.of(self._source.take(numbers.astype(np.int64)))

    def load(self) -> Records:
        """The same records with their arguments in memory: each pass reads them from there.

        Returns
        -------
        Records
        """
        columns = {n: np.empty((self.n_records, *s), d) for n, (d, s) in self.layout.items()}
        at = 0
        for block in self.blocks():
            for name, array in block.items():
                columns[name][at : at + len(array)] = array
            at += rows_of(block)
        return Records(columns, block_rows=self.block_rows)

    def digests(self, new: Callable[[str], Any]) -> dict[str, bytes]:
        """A digest of each argument, of a text with its type and shape, and of its bytes in C order.

        It does not depend on the source nor on the blocks. `new` makes an object with ``update`` and ``digest`` from the text.
        """
        hashes = {
            name: new(f"{dtype.str}{(self.n_records, *shape)}")
            for name, (dtype, shape) in self.layout.items()
        }
        for block in self.blocks():
            for name, array in block.items():
                hashes[name].update(array.data.cast("B"))
        return {name: digest.digest() for name, digest in hashes.items()}
