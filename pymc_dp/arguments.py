"""Checks of arguments: any numbers as Python floats and integers, with clear errors."""

from __future__ import annotations

import math
import operator

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt


def as_float(value: Any) -> float:
    """A real number as a float; NaN for other values, which fail every comparison."""
    if type(value) is float:
        return value
    if getattr(value, "ndim", None) == 0:
        value = np.asarray(value).item()
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_floats(what: str, values: npt.ArrayLike) -> np.ndarray:
    """Real numbers as an array of floats; ValueError for other values."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "biufO":
            return array.astype(float)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"The {what} must be real numbers, got {values!r}.")


def as_positive_float(what: str, value: Any) -> float:
    """Return the value as a float; ValueError unless it is a positive finite number."""
    if not 0 < as_float(value) < math.inf:
        raise ValueError(f"The {what} must be positive and finite, got {value!r}.")
    return as_float(value)


def as_probability(what: str, value: Any) -> float:
    """Return the value as a float; ValueError unless ``0 < value <= 1``."""
    if not 0 < as_float(value) <= 1:
        raise ValueError(f"The {what} must be above 0 and at most 1, got {value!r}.")
    return as_float(value)


def as_fraction(name: str, value: Any) -> float:
    """Return an argument as a float; ValueError unless ``0 < value <= 1``."""
    if not 0 < as_float(value) <= 1:
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}.")
    return as_float(value)


def check_delta(delta: float) -> float:
    """Return it as a float; ValueError unless ``0 <= delta < 1``."""
    if not 0 <= as_float(delta) < 1:
        raise ValueError(
            f"delta must be at least 0 and below 1, got {delta!r}. Usual: well below 1 / (number of records)."
        )
    return as_float(delta)


def check_epsilon(epsilon: float) -> float:
    """Return it as a float; ValueError unless it is positive."""
    if not as_float(epsilon) > 0:
        raise ValueError(
            f"epsilon must be positive (math.inf: no protection at all), got {epsilon!r}."
        )
    return as_float(epsilon)


def check_epsilon_delta(epsilon: float, delta: float) -> tuple[float, float]:
    """Return both as floats; ValueError unless ``epsilon > 0`` and ``0 <= delta < 1``."""
    return check_epsilon(epsilon), check_delta(delta)


def as_integer(what: str, value: Any, least: int | None = None) -> int:
    """The value as an int; TypeError unless it is one, ValueError if it is less than `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, got {value!r}: give an integer.") from None
    if least is not None and number < least:
        raise ValueError(f"{what} must be at least {least}, got {value!r}.")
    return number


def as_batch_size(value: Any, least: int, n_records: int) -> int | None:
    """Return ``batch_size`` as an int, None for all records; ValueError if it is out of range."""
    size = n_records if value is None else as_integer("batch_size", value)
    if not least <= size <= n_records and value is not None:
        raise ValueError(
            f"batch_size must be from {least} to the number of records, {n_records}, got {value!r}."
        )
    return None if size == n_records else size


def as_clip_bound(name: str, bound: Any, private: bool, why: str) -> float:
    """Return a clip bound as a float; ValueError unless it is positive, and finite in a private run."""
    if not (1e-100 <= as_float(bound) <= 1e100 or (as_float(bound) == math.inf and not private)):
        raise ValueError(
            f"{name} must be positive and finite, from 1e-100 to 1e100, got {bound!r}: {why}"
        )
    return as_float(bound)


def check_named(function: str, unnamed: Sequence[Any]) -> None:
    """Raise TypeError if a function with keyword-only arguments was given positional ones."""
    if unnamed:
        raise TypeError(
            f"{function}() got {len(unnamed)} argument(s) without a name: write each one with its name, such as {function}(epsilon=1.0, "
            "delta=1e-6, model=model)."
        )


def check_labels(records: Any) -> None:
    """Raise ValueError unless labels of records are integers; the message shows how to make them, and no label."""
    for labels in records.values() if isinstance(records, Mapping) else [records]:
        if records is None or (array := np.asarray(labels)).dtype.kind in "iu":
            continue
        got = "a name" if isinstance(labels, str) else f"an array of type {array.dtype}"
        raise ValueError(
            f"records must be integers, one label for each row of the data, got {got}: make them by records = pd.factorize(column)[0]."
        )


def cholesky(name: str, matrix: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor; ValueError unless the matrix is symmetric and positive definite."""
    if not (np.isfinite(matrix).all() and np.allclose(matrix, matrix.T)):
        raise ValueError(f"{name} must be symmetric and finite.")
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} must be positive definite.") from None
