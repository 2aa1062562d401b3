r"""Statistics of a posterior predictive check: bounded vectors of single records, and what their sums say.

Each statistic is a block :math:`B(y_i)` of a record's vector. In the units of the block (its *size*):

=================  ======================================  ====================  ==============
statistics         block                                   diameter              largest length
=================  ======================================  ====================  ==============
mean               :math:`u \in [-1, 1]`                   2                     1
variance           :math:`(u, u^2)`                        2                     :math:`\sqrt 2`
zeros              0 or 1                                  1                     1
bins, rootogram    a unit vector, or 0                     :math:`\sqrt 2`       1
residuals, groups  :math:`u` times a unit vector, or 0     2                     1
a user's function  :math:`u \in [-1, 1]^d`                 :math:`2 \sqrt d`     :math:`\sqrt d`
=================  ======================================  ====================  ==============

with :math:`u` the clipped value, minus the centre of its interval, over its half-width. The diameter of :math:`(u, u^2)`:
with :math:`d = |u - v|` and :math:`s = |u + v| \le 2 - d` the squared distance is :math:`d^2 (1 + s^2)`, and for :math:`s = 2 - d`
its root is at most :math:`d (1 + s^2 / 2) = 2 (1 - s/2) (1 + s^2/2) = 2 - (s / 2) (1 + (1 - s)^2) \le 2`.

Blocks are divided by their diameter if a record may be replaced, by their largest length if it may be added or removed.
So such a change moves each of ``J`` blocks by at most 1, and the vector of all of them by at most :math:`\sqrt J`, as squared lengths
add up: this is the L2 sensitivity of the sum, up to rounding (:func:`sensitivity`). A block's coordinate that is not a number counts as 0, which all blocks
contain.
"""

from __future__ import annotations

import itertools
import math

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_dp.display import Shown
from pymc_dp.model.record_function import Box

NAMED = ("mean", "variance", "zeros", "bins", "rootogram", "residuals")
#: Part of the simulated outcomes that lies beyond each end of a clip interval.
_BEYOND = 0.001
_LEVELS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_MOST_COUNTS, _N_RESIDUAL_BINS = 20, 10
#: Names of a row's outcome and of its prediction, as arguments of a user's function.
PREDICTION = "prediction"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GroupMeans(Shown):
    """Means of the outcome in groups: of each category of a column of the model's ``pm.Data``.

    Means are relative to the number of records, times the number of groups: a sum is released for each group, of the
    outcome minus the centre of its clip interval.

    Parameters
    ----------
    column : str
        Name of the ``pm.Data``.
    categories : sequence of float
        Public list of its values; a record with another value counts in no group.

    Examples
    --------
    Of the outcome in three wards, for ``dp.private_ppc(statistics=statistics, ...)``:

    >>> statistics = {"mean by ward": dp.checks.GroupMeans("ward", categories=[0, 1, 2])}
    """

    column: str
    categories: Sequence[float]


@dataclass(frozen=True, eq=False)
class Block:
    """One statistic: a bounded vector of a record, and the value computed from its noisy sum.

    `vector` maps a row's data, symbolic and by name (`columns`), to a list of `n_dim` scalars. The set of such vectors
    has diameter at most `diameter` and norms of at most `length`. `value` maps sums over `N` records, shape
    ``(n, n_dim)``, to the values named by `labels`, shape ``(n, n_labels)``. With `ordered`, values are counts in
    ascending bins, and numbers beyond an edge are compared, too.
    """

    name: str
    labels: tuple[str, ...]
    vector: Callable[[Row], list]
    n_dim: int
    diameter: float
    length: float
    columns: tuple[str, ...]
    value: Callable[[np.ndarray, int], np.ndarray]
    ordered: bool = False


def block_of(name: str, wanted: Any, y: str, simulated: Mapping[str, np.ndarray]) -> Block:
    """Block of a statistic, with public bounds and bins from simulated records."""
    if isinstance(wanted, GroupMeans):
        return _groups(name, wanted, y, simulated)
    if callable(wanted):
        raise TypeError("functions are made blocks by block_of_function().")
    if wanted not in NAMED:
        raise ValueError(
            f"statistics are {', '.join(NAMED)}, GroupMeans(...) or functions, got {wanted!r}."
        )
    values = np.asarray(simulated[y], float)
    make = {
        "mean": _mean,
        "variance": _variance,
        "zeros": _zeros,
        "bins": _bins,
        "rootogram": _rootogram,
    }
    if wanted == "residuals":
        return _residuals(name, y, values, simulated)
    return make[wanted](name, y, values)


def block_of_function(
    name: str, function: Callable, columns: Sequence[str], values: np.ndarray
) -> Block:
    """Block of a user's function; each coordinate is clipped to an interval with nearly all simulated values."""
    ends = [_interval(column) for column in values.reshape(len(values), -1).T]
    centre, width = np.array(ends).T
    d = len(ends)

    def vector(row: Row) -> list:
        found = function(**{n: row[n] for n in columns})
        parts = list(found) if isinstance(found, list | tuple) else found
        if not isinstance(parts, list):
            parts = pt.as_tensor_variable(parts)
            parts = [parts] if parts.ndim == 0 else [parts[k] for k in range(d)]
        return [_unit(p, c, w) for p, c, w in zip(parts, centre, width, strict=True)]

    return Block(
        name, tuple(f"{name}[{k}]" for k in range(d)) if d > 1 else (name,), vector, d, 2 * math.sqrt(d), math.sqrt(d),
        tuple(columns), lambda sums, n: centre + width * sums / n,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class JoinedBlocks(Box):
    """The blocks of all statistics side by side, each in units of its size."""

    n_blocks: int

    def sensitivity(self, adjacency: str) -> float:
        r"""How far one record moves the sum of vectors of `J` blocks, on the grid.

        Truncation towards zero, to steps of :math:`g = 2^{-30}`, adds less than ``g`` to the distance of two coordinates of one
        sign, and nothing to that of opposite signs, or to a length. Floating-point operations (a product, a quotient, the size)
        add at most :math:`2^{-50}`. So each of `d` coordinates of a difference grows by less than :math:`2 g`, and the norm, at most
        :math:`\sqrt J` before, by less than :math:`2 g \sqrt d \le \sqrt J \cdot 2^{-29} \sqrt d`.
        """
        return math.sqrt(self.n_blocks) * (1 + math.sqrt(self.n_dim) * 2.0**-29)


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Centre and half-width of an interval with nearly all values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise ValueError("Simulated values of a statistic are not finite: choose another function.")
    low, high = np.quantile(finite, [_BEYOND, 1 - _BEYOND])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return float(low + high) / 2, float(high - low) / 2


def _unit(value: Any, centre: float, width: float) -> Any:
    """Clip to an interval and map it to [-1, 1]."""
    return pt.clip((value - float(centre)) / float(width), -1.0, 1.0)


def _one_hot(value: Any, edges: np.ndarray) -> list:
    """Indicators of the bins between ascending edges; all are 0 if the value is not a number."""
    e = [float(x) for x in edges]
    inner = [pt.and_(pt.ge(value, a), pt.lt(value, b)) for a, b in itertools.pairwise(e)]
    return [1.0 * part for part in (pt.lt(value, e[0]), *inner, pt.ge(value, e[-1]))]


def _bin_labels(edges: np.ndarray) -> tuple[str, ...]:
    e = [f"{x:.4g}" for x in edges]
    return (
        f"< {e[0]}",
        *(f"{a} to {b}" for a, b in itertools.pairwise(e)),
        f">= {e[-1]}",
    )


def _mean(name: str, y: str, values: np.ndarray) -> Block:
    c, w = _interval(values)
    return Block(name, (name,), lambda r: [_unit(r[y], c, w)], 1, 2.0, 1.0, (y,), lambda s, n: c + w * s / n)  # fmt: skip


def _variance(name: str, y: str, values: np.ndarray) -> Block:
    c, w = _interval(values)

    def vector(row: Row) -> list:
        u = _unit(row[y], c, w)
        return [u, u * u]

    def variance(sums: np.ndarray, n: int) -> np.ndarray:
        mean, square = (sums / n).T
        return (w**2 * (square - mean**2))[:, None]

    return Block(name, (name,), vector, 2, 2.0, math.sqrt(2), (y,), variance)


def _zeros(name: str, y: str, values: np.ndarray) -> Block:
    def vector(row: Row) -> list:
        return [1.0 * pt.eq(row[y], 0)]

    return Block(name, (name,), vector, 1, 1.0, 1.0, (y,), lambda s, n: s / n)


def _counts(name: str, y: str, edges: np.ndarray, labels: tuple[str, ...]) -> Block:
    return Block(
        name, labels, lambda r: _one_hot(r[y], edges), len(labels), math.sqrt(2), 1.0, (y,), lambda s, n: s, True
    )  # fmt: skip


def _bins(name: str, y: str, values: np.ndarray) -> Block:
    edges = np.unique(np.quantile(values[np.isfinite(values)], _LEVELS))
    return _counts(name, y, edges, _bin_labels(edges))


def _rootogram(name: str, y: str, values: np.ndarray) -> Block:
    if not (np.array_equal(values, np.rint(values)) and values.min() >= 0):
        raise ValueError(
            f"A rootogram needs counts, but simulated outcomes {y!r} are not: use 'bins'."
        )
    most = int(np.clip(np.quantile(values, 1 - _BEYOND), 1, _MOST_COUNTS))
    return _counts(name, y, np.arange(most) + 0.5, (*map(str, range(most)), f">= {most}"))


def _residuals(name: str, y: str, values: np.ndarray, simulated: Mapping[str, np.ndarray]) -> Block:
    if PREDICTION not in simulated:
        raise ValueError('residuals need a prediction for each record: covariates="public".')
    predictions = simulated[PREDICTION]
    if not np.ptp(predictions) > 1e-9 * np.abs(predictions).max():
        raise ValueError("The model predicts the same for all records: leave out 'residuals'.")
    levels = np.linspace(0, 1, _N_RESIDUAL_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(predictions, levels))
    width = float(np.quantile(np.abs(values - predictions), 1 - _BEYOND)) or 1.0
    sizes = np.bincount(np.searchsorted(edges, predictions, side="right"), minlength=len(edges) + 1)
    parts = np.maximum(sizes, 1) / len(predictions)

    def vector(row: Row) -> list:
        u = _unit(row[y] - row[PREDICTION], 0.0, width)
        return [u * place for place in _one_hot(row[PREDICTION], edges)]

    return Block(
        name, _bin_labels(edges), vector, len(edges) + 1, 2.0, 1.0, (y, PREDICTION), lambda s, n: width * s / (n * parts)
    )  # fmt: skip


def _groups(name: str, wanted: GroupMeans, y: str, simulated: Mapping[str, np.ndarray]) -> Block:
    if wanted.column not in simulated or simulated[wanted.column].ndim > 1:
        raise ValueError(
            f"{wanted.column!r} is no pm.Data of the model with a number for each record."
        )
    categories = [float(c) for c in wanted.categories]
    if not categories or len(set(categories)) < len(categories):
        raise ValueError(
            f"categories must be different numbers, at least one, got {wanted.categories!r}."
        )
    c, w = _interval(np.asarray(simulated[y], float))

    def vector(row: Row) -> list:
        u = _unit(row[y], c, w)
        return [u * pt.eq(row[wanted.column], k) for k in categories]

    k = len(categories)
    labels = tuple(f"{wanted.column} = {x:g}" for x in categories)
    return Block(
        name, labels, vector, k, 2.0, 1.0, (y, wanted.column), lambda s, n: c + w * k * s / n
    )
