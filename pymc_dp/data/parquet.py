"""Columns of Parquet files, read by pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import itertools
import os

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.data.columns import (
    Arguments,
    Kinds,
    arrow_type,
    check_names,
    missing,
    number_type,
    rows_of,
)

#: Bytes of a column that are read at once: a row group may be larger than memory.
_BUFFER = 2**18


class _Group(NamedTuple):
    """Rows ``begin`` to ``end`` of a row group."""

    path: str
    stamp: tuple[int, int]  # of the file
    number: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Parquet:
    """Rows of row groups, with the paths of their files."""

    def __init__(self, groups: Sequence[_Group], kinds: Kinds) -> None:
        self.groups, self.kinds = groups, kinds
        self._starts = [0, *itertools.accumulate(group.size for group in groups)]
        self.n_rows = self._starts[-1]

    @property
    def description(self) -> str:
        """Text for one line."""
        n_files = len({group.path for group in self.groups})
        return f"Parquet, {n_files} file{'s' if n_files > 1 else ''}"

    def batches(self, n_rows: int) -> Generator[dict[str, np.ndarray]]:
        """Successive rows, at most `n_rows` at a time."""
        for _, columns in self._read(n_rows, zip(self._starts, self.groups, strict=False)):
            yield columns

    def cuts(self, n: int) -> list[int]:
        """Row numbers that divide the rows into `n` ranges, between row groups if there are enough."""
        even = [k * self.n_rows // n for k in range(n + 1)]
        n_groups, starts, cuts = len(self.groups), np.array(self._starts), [0]
        if n > n_groups:
            return even
        for k in range(1, n):
            nearest = int(np.abs(starts - even[k]).argmin())
            cuts.append(min(max(nearest, cuts[-1] + 1), n_groups - n + k))
        return [self._starts[cut] for cut in (*cuts, n_groups)]

    def part(self, begin: int, end: int) -> Parquet:
        """Rows of a range."""
        low, high = bisect_right(self._starts, begin) - 1, bisect_left(self._starts, end)
        return Parquet([self._cut(k, begin, end) for k in range(low, high)], self.kinds)

    def _cut(self, k: int, begin: int, end: int) -> _Group:
        """Rows of group `k` that are in a range."""
        group, start = self.groups[k], self._starts[k]
        first, last = max(begin - start, 0), min(end - start, group.size)
        return group._replace(begin=group.begin + first, end=group.begin + last)

    def take(self, index: np.ndarray, n_rows: int) -> dict[str, np.ndarray]:
        """Rows by number; only the row groups that hold them are read, `n_rows` at a time."""
        order = np.argsort(index)
        ascending = index[order]
        bounds = np.searchsorted(ascending, self._starts)
        wanted = []
        for k in np.flatnonzero(np.diff(bounds)):
            begin, end = int(ascending[bounds[k]]), int(ascending[bounds[k + 1] - 1]) + 1
            wanted.append((begin, self._cut(int(k), begin, end)))
        taken = {name: np.empty(len(index), dtype) for name, (dtype, _) in self.kinds.items()}
        for start, columns in self._read(n_rows, wanted):
            low, high = np.searchsorted(ascending, [start, start + rows_of(columns)])
            for name, column in columns.items():
                taken[name][order[low:high]] = column[ascending[low:high] - start]
        return taken

    def _read(self, n_rows: int, groups: Any) -> Generator[tuple[int, dict[str, np.ndarray]]]:
        """Successive rows of groups, each with the number of its first row."""
        for path, together in itertools.groupby(groups, lambda item: item[1].path):
            with _opened(path) as file:
                for start, group in together:
                    if _stamp(path) != group.stamp:
                        raise RuntimeError(
                            f"{path} has changed since it was opened: make the Records again."
                        )
                    yield from self._group(file, group, start, n_rows)

    def _group(
        self, file: Any, group: _Group, start: int, n_rows: int
    ) -> Generator[tuple[int, dict[str, np.ndarray]]]:
        """Rows of one group."""
        at = -group.begin  # of a batch, in the range
        for batch in file.iter_batches(
            n_rows, row_groups=[group.number], columns=list(self.kinds), use_threads=False
        ):
            first, last = max(-at, 0), min(group.size - at, batch.num_rows)
            if first < last:
                rows = batch.slice(first, last - first)
                yield start + at + first, {name: _values(name, rows) for name in self.kinds}
            at += batch.num_rows
            if at >= group.size:
                return


def open_parquet(path: Any, given: Any, single_precision: bool) -> tuple[Parquet, Arguments]:
    """Rows of a file, of files or of a folder, and the arguments of their columns; no values are read."""
    groups: list[_Group] = []
    paths = _paths(path)
    with _opened(paths[0]) as file:
        schema = file.schema_arrow
    arguments = Arguments(given, schema.names, single_precision)
    kinds: Kinds = {}
    for name in arguments.used:
        kind = schema.field(name).type
        kinds[name] = number_type(name, arrow_type(kind), str(kind)), ()
    arguments.lay_out(kinds)
    types = _types(schema, given, kinds)
    for file_path in paths:
        with _opened(file_path) as file:
            stamp = _stamp(file_path)
            check_names(file.schema_arrow.names)
            found = _types(file.schema_arrow, given, kinds)
            if differ := [n for n in {**types, **found} if types.get(n) != found.get(n)]:
                name = differ[0]
                raise ValueError(
                    f"{file_path} and {paths[0]} have different columns: {name!r} is of type "
                    f"{found.get(name, 'none')} and {types.get(name, 'none')}. Write them with one schema."
                )
            _check_statistics(file.metadata, kinds)
            sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
            groups += [_Group(file_path, stamp, k, 0, n) for k, n in enumerate(sizes) if n]
    if not groups:
        raise ValueError(f"{paths[0]} has no rows: give one record at least.")
    return Parquet(groups, kinds), arguments


def _types(schema: Any, given: Any, used: Kinds) -> dict[str, str]:
    """Types of the columns that must agree between files: the used ones, by default all."""
    return {field.name: str(field.type) for field in schema if given is None or field.name in used}


def _paths(path: Any) -> list[str]:
    """Absolute paths of the files; from a folder all, sorted, unless their names begin with a dot or an underscore."""
    if isinstance(path, str | os.PathLike):
        paths = [Path(path)]
        if paths[0].is_dir():
            paths = sorted(p for p in paths[0].iterdir() if p.name[0] not in "._")
    else:
        paths = [Path(p) for p in path]
    if not paths:
        raise FileNotFoundError(f"There are no Parquet files: {path} is empty.")
    if folders := [p for p in paths if p.is_dir()]:
        raise ValueError(f"{folders[0]} is a folder among the files: list the files one by one.")
    return [str(p.absolute()) for p in paths]


@contextmanager
def _opened(path: str) -> Generator[Any]:
    """Open a Parquet file. The text of pyarrow's errors is withheld: nothing shows that it has no values."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError(
            "Parquet files need pyarrow: install it, or pymc-dp with its extra 'parquet'."
        ) from None
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: check the path, of a local file.")
    try:
        # Without pre_buffer, which starts threads and holds whole row groups.
        with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise OSError(
            f"{path} cannot be read as Parquet ({type(error).__name__}): check the file."
        ) from None


def _stamp(path: str) -> tuple[int, int]:
    """Size and modification time."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _check_statistics(metadata: Any, used: Kinds) -> None:
    """Raise ValueError if the file's statistics count missing values; without statistics, reading finds them."""
    names = [metadata.schema.column(j).path for j in range(metadata.num_columns)]
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        for j in (j for j, name in enumerate(names) if name in used):
            statistics = group.column(j).statistics
            if statistics is not None and statistics.null_count:
                raise missing(names[j])


def _values(name: str, rows: Any) -> np.ndarray:
    column = rows.column(name)
    if column.null_count:
        raise missing(name)
    return column.to_numpy(zero_copy_only=False)
