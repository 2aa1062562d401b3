"""Ranges: what is publicly known about covariates before the data are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from pymc_dp.arguments import as_float
from pymc_dp.codec import published
from pymc_dp.display import MOST_ROWS, Shown
from pymc_dp.model.withheld import evaluate

_WHERE = "when a covariate was read"


@dataclass(frozen=True)
class Column(Shown):
    """One covariate, or one column of a matrix: a number in the range from `low` to `high`, or one of `categories`."""

    name: str
    low: float = 0.0
    high: float = 0.0
    categories: tuple[Any, ...] = ()

    def places(self, values: np.ndarray) -> np.ndarray:
        """Position of each value, a function of it alone: from 0 to 1 in a range, or the number of its category.

        Values outside of a range have the position of the nearest limit. Other categories, and whatever is not a number
        where one is expected, have that of the last one. No value makes it raise or warn.
        """
        if self.has_text:
            numbers = {category: float(k) for k, category in enumerate(self.categories)}
            return _each(
                values.astype(object), lambda value: numbers.get(value, len(numbers) - 1.0)
            )
        is_number = values.dtype.kind in "biuf"
        found = values.astype(float) if is_number else _each(values.astype(object), _number)
        if self.categories:
            equal = found[:, None] == np.array(self.categories, dtype=float)
            return np.where(equal.any(axis=1), equal.argmax(axis=1), len(self.categories) - 1.0)
        found = (found - self.low) / (self.high - self.low)
        return np.clip(np.where(np.isnan(found), 1.0, found), 0.0, 1.0)

    @property
    def has_text(self) -> bool:
        """Whether categories are strings."""
        return bool(self.categories) and isinstance(self.categories[0], str)

    def values(self, places: np.ndarray) -> np.ndarray:
        """Inverse of :meth:`places`."""
        if self.categories:
            return np.array(self.categories)[places.astype(int)]
        return self.low + places * (self.high - self.low)


@published
class Ranges(Mapping[str, Any]):
    """Ranges and categories of covariates, by name: public, and not looked up in the data.

    Parameters
    ----------
    **columns
        For each covariate: a pair of numbers ``(low, high)``, the limits of a range; or a list of categories (numbers
        or strings; a tuple of strings will do); or, for a matrix with a row per record, a list with one of these for
        each of its columns. Values outside are treated as the nearest limit, or the last category; so is whatever is
        missing or of another type, as the upper limit or the last category. Types of columns are public. A whole number
        with few values is better listed: in a range, made-up values are not whole.

    Raises
    ------
    ValueError
        If a description is neither.

    Examples
    --------
    >>> ranges = dp.Ranges(
    ...     age=(18, 100), sex=("f", "m"), smoker=[0, 1], x=[(-3, 3), (-3, 3)]
    ... )
    >>> [column.name for column in ranges.columns]
    ['age', 'sex', 'smoker', 'x[0]', 'x[1]']
    """

    def __init__(self, **columns: Any) -> None:
        if not columns:
            raise ValueError(
                "Give at least one covariate with its range, such as Ranges(age=(18, 100))."
            )
        self._given = columns
        self._parts = {name: _described(name, given) for name, given in columns.items()}

    @property
    def columns(self) -> list[Column]:
        """All columns, those of matrices one by one."""
        return [column for parts, _ in self._parts.values() for column in parts]

    def to_dict(self) -> dict[str, Any]:
        """The arguments as lists."""
        return {name: _plain(given) for name, given in self._given.items()}

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> Ranges:
        """Inverse of :meth:`to_dict`."""
        return cls(**{name: _from_plain(given) for name, given in contents.items()})

    def __getitem__(self, name: str) -> list[Column]:
        return self._parts[name][0]

    def __iter__(self) -> Any:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        names = [c.name for c in self.columns]
        more = [f"... {len(names) - MOST_ROWS} more"] if len(names) > MOST_ROWS else []
        return f"Ranges({', '.join([*names[:MOST_ROWS], *more])})"

    def places(self, data: Any) -> np.ndarray:
        """Positions of all values, shape ``(n_rows, n_columns)``; ValueError if types or shapes do not fit: these are public."""
        found = []
        for name, (parts, is_matrix) in self._parts.items():
            if name not in data:
                raise ValueError(
                    f"Ranges describe {name!r}, which the data do not have: they have {', '.join(map(str, data))}."
                )
            values = evaluate(_WHERE, _as_array, data[name], is_matrix)
            matrix = values if is_matrix else values[:, None] if values.ndim == 1 else values
            if matrix.ndim != 2 or matrix.shape[1] != len(parts):
                raise ValueError(
                    f"Ranges describe {len(parts)} column(s) of {name!r}, whose shape is {values.shape}."
                )
            for column, part in zip(matrix.T, parts, strict=True):
                if not part.categories and column.dtype.kind not in "biufO":
                    raise ValueError(
                        f"{part.name} has a range, but its values are not numbers: list its categories."
                    )
                found.append(evaluate(_WHERE, part.places, column))
        if len({len(column) for column in found}) > 1:
            raise ValueError("The columns of the data must have the same number of rows.")
        return np.column_stack(found)

    def numbers(self, data: Any) -> list[np.ndarray]:
        """The columns that hold numbers, as they are."""
        arrays = [_as_array(data[name]) for name in self]
        return [array for array in arrays if array.dtype.kind in "biuf"]

    def rows(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Values by name, from positions of shape ``(n_rows, n_columns)``."""
        found, k = {}, 0
        for name, (parts, is_matrix) in self._parts.items():
            columns = [part.values(places[:, k + j]) for j, part in enumerate(parts)]
            found[name] = np.column_stack(columns) if is_matrix else columns[0]
            k += len(parts)
        return found


def _as_array(values: Any, is_matrix: bool = False) -> np.ndarray:
    """A column as an array; a list becomes an array of objects, because one entry could decide its type."""
    if not isinstance(values, list | tuple):
        return np.asarray(values)
    if is_matrix:
        return np.asarray(values, dtype=object)
    return np.fromiter(values, dtype=object, count=len(values))


def _each(values: np.ndarray, position: Callable[[Any], float]) -> np.ndarray:
    """A function of each entry, or its value at None where it raises, as for a list or ``pandas.NA``."""
    last = position(None)

    def guarded(value: Any) -> float:
        try:
            return position(value)
        except Exception:  # which one depends on the value
            return last

    return np.fromiter(map(guarded, values), dtype=float, count=len(values))


def _number(value: Any) -> float:
    """An entry as a float, huge integers as infinities; NaN unless it is a real number."""
    is_number = isinstance(value, Real | Decimal | np.bool_)
    try:
        return float(value) if is_number else np.nan
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _described(name: str, given: Any) -> tuple[list[Column], bool]:
    """Columns of a covariate, and whether it is a matrix."""
    parts = list(given) if isinstance(given, list | tuple) else []
    if parts and all(isinstance(part, list | tuple) for part in parts):
        return [_column(f"{name}[{k}]", part) for k, part in enumerate(parts)], True
    return [_column(name, given)], False


def _column(name: str, given: Any) -> Column:
    values = tuple(given) if isinstance(given, list | tuple) else ()
    is_text = all(isinstance(value, str) for value in values)
    if isinstance(given, tuple) and not is_text:
        if len(values) == 2 and -np.inf < as_float(values[0]) < as_float(values[1]) < np.inf:
            return Column(name, as_float(values[0]), as_float(values[1]))
    elif len(values) > 1 and len(set(values)) == len(values):
        if is_text or all(np.isfinite(as_float(value)) for value in values):
            return Column(name, categories=values)
    raise ValueError(
        f"{name} must be a range (low, high) with low < high, or a list of two or more different categories, got {_listed(given)}."
    )


def _plain(given: Any) -> Any:
    """Ranges as dicts, so that a file distinguishes them from lists of categories."""
    if isinstance(given, tuple) and not all(isinstance(value, str) for value in given):
        return {"low": as_float(given[0]), "high": as_float(given[1])}
    values = [_plain(value) if isinstance(value, list | tuple) else value for value in given]
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _from_plain(given: Any) -> Any:
    if isinstance(given, dict):
        return given["low"], given["high"]
    return [_from_plain(value) if isinstance(value, list | dict) else value for value in given]


def _listed(given: Sequence[Any] | Any) -> str:
    text = repr(given)
    return text if len(text) < 80 else text[:77] + "..."
