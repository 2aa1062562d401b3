"""Columns of Parquet files, read by pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import itertools
import os

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.data.columns import arrow_type, arrow_values, rows_of, used_columns
from pymc_dp.data.source import Kinds

#: Bytes of a column that are read at once: a row group may be larger than memory (`pyarrow.dataset` holds whole ones).
_BUFFER = 2**18
#: Rows that are read at once where rows are asked for by number.
_ROWS = 2**14


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

    def part(self, begin: int, end: int) -> _Group:
        """Some of these rows, counted from the first of them."""
        return self._replace(begin=self.begin + begin, end=self.begin + end)


class Parquet:
    """Rows of row groups, with the paths of their files."""

    def __init__(self, groups: Sequence[_Group], layout: Kinds) -> None:
        self._groups, self.layout = groups, layout
        self._starts = [0, *itertools.accumulate(group.size for group in groups)]
        self.n_records = self._starts[-1]

    def __str__(self) -> str:
        n_files = len({group.path for group in self._groups})
        return f"Parquet, {n_files} file{'s' if n_files > 1 else ''}"

    def blocks(self, n_rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Successive rows, at most `n_rows` of one row group at a time."""
        return (columns for _, columns in self._read(n_rows, zip(self._starts, self._groups)))

    def split(self, n: int) -> list[Parquet]:
        """Whole row groups, as many in each up to one; halves of the largest ones if there are too few."""
        groups = list(self._groups)
        while len(groups) < n:
            k = max(range(len(groups)), key=lambda k: groups[k].size)
            size = groups[k].size
            groups[k : k + 1] = groups[k].part(0, size // 2), groups[k].part(size // 2, size)
        cuts = itertools.pairwise(k * len(groups) // n for k in range(n + 1))
        return [Parquet(groups[i:j], self.layout) for i, j in cuts]

    def take(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """Rows by number; of a row group those from the first to the last that is asked for are read."""
        order = np.argsort(index)
        ascending = index[order]
        bounds = np.searchsorted(ascending, self._starts)
        wanted = []
        for k in map(int, np.flatnonzero(np.diff(bounds))):
            begin, end = int(ascending[bounds[k]]), int(ascending[bounds[k + 1] - 1]) + 1
            start = self._starts[k]
            wanted.append((begin, self._groups[k].part(begin - start, end - start)))
        taken = {name: np.empty(len(index), dtype) for name, (dtype, _) in self.layout.items()}
        for start, columns in self._read(_ROWS, wanted):
            low, high = np.searchsorted(ascending, [start, start + rows_of(columns)])
            for name, column in columns.items():
                taken[name][order[low:high]] = column[ascending[low:high] - start]
        return taken

    def _read(
        self, n_rows: int, groups: Iterable[tuple[int, _Group]]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Successive rows of groups, each with the number of its first row."""
        for path, together in itertools.groupby(groups, lambda item: item[1].path):
            with _opened(path) as file:
                for start, group in together:
                    if _stamp(path) != group.stamp:
                        raise RuntimeError(
                            f"{path} has changed since it was opened: make the Records again."
                        )
                    at = -group.begin  # of a batch, in the range
                    for batch in file.iter_batches(
                        n_rows, row_groups=[group.number], columns=list(self.layout), use_threads=False
                    ):  # fmt: skip
                        first, last = max(-at, 0), min(group.size - at, batch.num_rows)
                        if first < last:
                            rows = batch.slice(first, last - first)
                            yield start + at + first, {n: arrow_values(n, rows.column(n)) for n in self.layout}  # fmt: skip
                        at += batch.num_rows
                        if at >= group.size:
                            break


def open_parquet(path: Any, given: Any) -> Parquet:
    """Rows of a file, of files or of a folder, with the columns that arguments stand for; no values are read."""
    groups: list[_Group] = []
    paths = _paths(path)
    with _opened(paths[0]) as file:
        schema = file.schema_arrow
    used = used_columns(given, schema.names)
    layout: Kinds = {n: (arrow_type(n, schema.field(n).type), ()) for n in used}
    types = _types(schema, given, layout)
    for file_path in paths:
        with _opened(file_path) as file:
            stamp, metadata = _stamp(file_path), file.metadata
            used_columns(None, file.schema_arrow.names)
            found = _types(file.schema_arrow, given, layout)
            if differ := [n for n in {**types, **found} if types.get(n) != found.get(n)]:
                name = differ[0]
                raise ValueError(
                    f"{file_path} and {paths[0]} have different columns: {name!r} is of type "
                    f"{found.get(name, 'none')} and {types.get(name, 'none')}. Write them with one schema."
                )
            sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
            groups += [_Group(file_path, stamp, k, 0, n) for k, n in enumerate(sizes) if n]
    if not groups:
        raise ValueError(f"{paths[0]} has no rows: give one record at least.")
    return Parquet(groups, layout)


def _types(schema: Any, given: Any, used: Collection[str]) -> dict[str, str]:
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
def _opened(path: str) -> Iterator[Any]:
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
