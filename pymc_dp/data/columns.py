"""Columns of numbers, and the arguments that they are laid out as."""

from __future__ import annotations

import itertools
import math

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp.data.source import Kinds

#: Columns that are shown in one line.
_SHOWN = 8
#: Blocks of this size stay in the cache of a core.
_BLOCK_BYTES = 2**21


def used_columns(arguments: Any, names: Sequence[str]) -> list[str]:
    """Names of the columns that arguments stand for, of all columns; raises for names that are wrong."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"Several columns have the name {twice[0]!r}: rename them, so that each name occurs once."
        )
    if not names:
        raise ValueError("There are no columns: give one at least.")
    if arguments is None:
        return list(names)
    lists = [*map(_listed, arguments.values())] if isinstance(arguments, Mapping) else []
    if not lists or not all(lists):
        raise TypeError(  # without what was given: it may be data
            "arguments must map each name to a column or a list of columns, such as {'X': ['x1', 'x2'], 'y': 'y'}."
        )
    used = list(dict.fromkeys(itertools.chain(*lists)))
    if unknown := [name for name in used if name not in names]:
        raise ValueError(
            f"arguments has the column {unknown[0]!r}, but the columns are {', '.join(names)}."
        )
    return used


class Arguments:
    """Arguments of a model, by name: each is one column, or a list of columns side by side.

    `kinds` has the columns, of type and trailing shape, and `layout` the arguments. ValueError for a list with a matrix.
    """

    def __init__(self, given: Any, kinds: Kinds, single_precision: bool = False) -> None:
        used = used_columns(given, [*kinds])
        given = {name: name for name in used} if given is None else given
        self._parts: dict[str, Any] = {str(name): part for name, part in given.items()}
        self.layout: Kinds = {}
        for name, part in self._parts.items():
            if isinstance(part, str):
                dtype, shape = kinds[part]
                rounds = single_precision and dtype == np.float64
                self.layout[name] = np.dtype(np.float32) if rounds else dtype, shape
                continue
            if wide := [column for column in part if kinds[column][1]]:
                raise ValueError(
                    f"Column {wide[0]!r} has rows of shape {kinds[wide[0]][1]}, and cannot be one of several in the "
                    f"argument {name!r}: make it an argument of its own."
                )
            single = single_precision or all(kinds[c][0] == np.float32 for c in part)
            self.layout[name] = np.dtype(np.float32 if single else np.float64), (len(part),)

    @property
    def block_rows(self) -> int:
        """Default number of rows of a block: about 2**21 bytes, in multiples of 64 rows."""
        width = sum(dtype.itemsize * math.prod(shape) for dtype, shape in self.layout.values())
        return max(_BLOCK_BYTES // width // 64, 1) * 64

    def of(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arguments from columns; views where a single column is contiguous."""
        block = {}
        # Of rounding to float32: a warning would depend on the data.
        with np.errstate(over="ignore"):
            for name, part in self._parts.items():
                dtype, shape = self.layout[name]
                if isinstance(part, str):
                    block[name] = np.ascontiguousarray(columns[part], dtype)
                else:
                    block[name] = np.empty((rows_of(columns), *shape), dtype)
                    np.stack([columns[column] for column in part], axis=1, out=block[name])
        return block


def _listed(part: Any) -> list[str]:
    """Names of columns; empty unless the argument is a name or a list of names."""
    if isinstance(part, list | tuple) and all(isinstance(column, str) for column in part):
        return list(part)
    return [part] if isinstance(part, str) else []


def width_of(layout: Kinds) -> int:
    """Count of numbers in a record."""
    return sum(math.prod(shape) for _, shape in layout.values())


def in_words(layout: Kinds) -> str:
    """Names, types and shapes of columns, in one line."""
    shown = [f"{n}: {d}{f' {s}' if s else ''}" for n, (d, s) in layout.items()]
    if len(shown) > _SHOWN:
        shown = [*shown[:_SHOWN], f"{len(shown) - _SHOWN} more"]
    return ", ".join(shown)


def rows_of(columns: Mapping[str, np.ndarray]) -> int:
    """Number of rows of columns of equal length."""
    return len(next(iter(columns.values())))


def arrow_values(name: str, column: Any) -> np.ndarray:
    """Values of an Arrow column; ValueError if it has missing ones."""
    if column.null_count:
        raise missing(name)
    return column.to_numpy(zero_copy_only=False)


def arrow_type(name: str, kind: Any) -> np.dtype:
    """NumPy's dtype of an Arrow type; ValueError unless it is numeric."""
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        dtype = None
    return number_type(name, dtype, str(kind))


def number_type(name: str, dtype: np.dtype | None, described: str) -> np.dtype:
    """The dtype in native byte order; ValueError unless it is numeric."""
    if dtype is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(
            f"Column {name!r} must hold numbers, not the type {described}: give categories as codes of a public list, "
            "such as pandas.Categorical(column, categories=[...]).codes, and dates as numbers; or leave the "
            "column out, with arguments={...}."
        )
    return dtype.newbyteorder("=")


def missing(name: str) -> ValueError:
    """The error for a column with missing values."""
    return ValueError(
        f"Column {name!r} has missing values: replace them by a public value, or leave the column out, with arguments={{...}}."
    )
