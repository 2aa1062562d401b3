"""private_sum() and private_counts(): a function of each record, clipped or binned, summed exactly, with noise."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pymc_dp.arguments import as_floats, check_labels
from pymc_dp.codec import published
from pymc_dp.display import Shown
from pymc_dp.model.record_function import Ball, Bins, Box, RecordFunction
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries.noisy_total import noise_of_all, release_all


@published
@dataclass(frozen=True, eq=False)
class PrivateSum(Shown):
    r"""Noisy sum over records of a clipped function of their data: public, since a budget paid for it.

    Parameters
    ----------
    total : array, shape of the function's result
        :math:`\sum_i (\operatorname{clip}(f_i) - c)` with noise.
    centre : array of the same shape
        :math:`c`.
    bound : float, or array of the same shape
        Radius of the ball, or half-widths of the box, around the centre, to which vectors were clipped.
    noise : NoiseLaw
        Of the sum in units of `bound`.
    n_records : int or None
        Public number of privacy units; None where it is private (add/remove).
    report : PrivacyReport
        What it cost.

    Examples
    --------
    >>> age, budget = np.full(2000, 40.0), dp.PrivacyBudget(1.0, 1e-6, chains=1)
    >>> found = dp.private_sum(
    ...     lambda age: age, {"age": age}, centre=50, bound=50, budget=budget
    ... )
    >>> bool(abs(found.mean - 40) < 6 * found.mean_noise_sd)
    True
    """

    total: np.ndarray
    centre: np.ndarray
    bound: float | np.ndarray
    noise: NoiseLaw
    n_records: int | None
    report: PrivacyReport = field(repr=False)

    @property
    def noise_sd(self) -> np.ndarray:
        """Standard deviation of the noise on each coordinate of the total."""
        return np.broadcast_to(self.noise.sd * self.bound, self.total.shape)

    @property
    def sum(self) -> np.ndarray:
        """Noisy sum of the clipped vectors, the centre included."""
        return self.total + self._number() * self.centre

    @property
    def mean(self) -> np.ndarray:
        """Noisy mean of the clipped vectors; its noise has standard deviation :attr:`mean_noise_sd`."""
        return self.centre + self.total / self._number()

    @property
    def mean_noise_sd(self) -> np.ndarray:
        """Standard deviation of the noise on each coordinate of the mean."""
        return self.noise_sd / self._number()

    def draw_noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Simulate noise on the total, shape ``(n, *total.shape)``."""
        return self.noise.draw(n, rng).reshape(n, *self.total.shape) * self.bound

    def _number(self) -> int:
        if self.n_records is None:
            raise ValueError(
                "The number of records is private here (add/remove): give the function a coordinate for it, such as 1 + 0 * x, and divide by its sum."
            )
        return self.n_records

    def __str__(self) -> str:
        """What was released, with the size of the noise."""
        what = "total" if self.n_records is None else "mean"
        value, sd = (
            (self.total, self.noise_sd)
            if self.n_records is None
            else (self.mean, self.mean_noise_sd)
        )
        of = "" if self.n_records is None else f" of {self.n_records} records"
        return (
            f"private sum{of}: {what} {_short(value)}, {self.noise.kind} noise with sd {_short(sd)}"
        )


@published
@dataclass(frozen=True, eq=False)
class PrivateCounts(Shown):
    """Noisy numbers of records in bins: public, since a budget paid for them.

    Parameters
    ----------
    edges : tuple of arrays
        Between the bins, for each coordinate of the function's result.
    counts : tuple of arrays of float64
        One more than edges; with noise, whole numbers, possibly negative.
    noise : NoiseLaw
        Of all counts together, before it is rounded to whole numbers.
    n_records : int or None
        Public number of privacy units; None where it is private (add/remove).
    report : PrivacyReport
        What it cost.

    Examples
    --------
    >>> ill, budget = np.repeat([0, 1], [1500, 500]), dp.PrivacyBudget(1.0, 1e-6, chains=1)
    >>> found = dp.private_counts(lambda ill: ill, {"ill": ill}, edges=[0.5], budget=budget)
    >>> bool(abs(found.counts[0][1] - 500) < 6 * found.noise_sd)
    True
    """

    edges: tuple[np.ndarray, ...]
    counts: tuple[np.ndarray, ...]
    noise: NoiseLaw
    n_records: int | None
    report: PrivacyReport = field(repr=False)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise on each count."""
        return self.noise.sd

    def draw_noise(self, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Simulate noise on the counts: for each coordinate an array of shape ``(n, n_bins)``."""
        ends = np.cumsum([len(count) for count in self.counts])[:-1]
        return np.split(np.rint(self.noise.draw(n, rng)), ends, axis=1)

    def __str__(self) -> str:
        """The counts, with the size of the noise."""
        rows = "; ".join(_short(count) for count in self.counts)
        return f"private counts: {rows}, {self.noise.kind} noise with sd {self.noise_sd:.4g}"


def private_sum(
    function: Callable[..., Any],
    data: Mapping[str, Any],
    *,
    bound: npt.ArrayLike,
    budget: PrivacyBudget,
    centre: npt.ArrayLike = 0.0,
    noise: str = "auto",
    public: Mapping[str, Any] | None = None,
    records: Any = None,
) -> PrivateSum:
    """Release the sum over records of a function of their data, clipped to a ball or a box, with noise.

    Parameters
    ----------
    function : callable
        Called once with symbols for the data of *one* row, by name, and applied to each row: so it sees one row only.
        It returns a PyTensor expression (arithmetic, ``pm.math``): a scalar, a vector, or a list of scalars. An array
        from outside is refused: pass it by `public`. (A number from outside cannot be told from a public one: it must
        not be computed from the data.)
    data : mapping of str to array, or DataFrame
        Columns of numbers, with the rows on the leading axis. The function's arguments are some of their names.
    bound : float or array
        Public. A number is the radius of a ball around the centre, an array has the half-widths of a box. Vectors
        outside are moved to the nearest point of the same direction (ball), coordinates to the nearest end (box).
    budget : PrivacyBudget
        Pays for the release, all of it: nothing else can be claimed on it later. To spend a part of an account, make a
        budget of that part with the same ledger.
    centre : float or array
        Public centre of the ball or box: the closer to the data, the smaller a `bound` they need.
    noise : {"auto", "gaussian", "l2"}
        ``"auto"`` takes the one with the smaller standard deviation.
    public : mapping of str to array, optional
        Further arguments of the function, the same for all rows, that hold no data of records, such as draws of a
        released posterior.
    records : array of int, shape (n_rows,), optional
        The privacy unit that each row belongs to: vectors of its rows are summed, then clipped. By default each row
        is a unit.

    Returns
    -------
    PrivateSum

    Raises
    ------
    ValueError, TypeError, UnsupportedModel
        If arguments do not fit together, before anything is accessed.
    PrivacyBudgetExhausted
        If something was claimed on the budget before, or its ledger does not pay for it.

    Notes
    -----
    The L2 sensitivity, in units of the bound, is 2 (ball) or twice the root of the dimension (box) if a record is
    replaced, half of that if it is added or removed; the proof is
    in :mod:`pymc_dp.model.record_function`. A vector that
    is not finite counts as the centre.

    Examples
    --------
    Mean and mean square of ages, known to be from 18 to 100:

    >>> import numpy as np, pymc_dp as dp
    >>> age = np.random.default_rng(1).uniform(20, 60, size=5000)
    >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=1e-6, chains=1)
    >>> found = dp.private_sum(
    ...     lambda age: [age, age**2],
    ...     {"age": age},
    ...     centre=[59, 5162],
    ...     bound=[41, 4838],
    ...     budget=budget,
    ... )
    >>> bool(abs(found.mean[0] - 40) < 1)
    True
    """
    of_records = _of_records(function, data, public, records)
    shape, d = of_records.shape, of_records.n_dim
    middle, widths = _as_vector("centre", centre, shape), _as_vector("bound", bound, shape)
    if not (np.isfinite(middle).all() and ((widths > 0) & (widths < math.inf)).all()):
        raise ValueError(f"centre must be finite, and bound positive and finite, got {centre!r} and {bound!r}.")  # fmt: skip
    is_ball = np.ndim(bound) == 0
    mechanism = noise_of_all(budget, "private sum", d, noise)
    term = Ball(middle, float(widths[0])) if is_ball else Box(middle, widths)
    found = release_all(
        budget, "private sum", mechanism, of_records, term, of_records.containers, of_records.n_records
    )  # fmt: skip
    return PrivateSum(
        (found.total * widths).reshape(shape), middle.reshape(shape), float(widths[0]) if is_ball else widths.reshape(shape), found.noise,
        _public_number(budget, of_records), budget.report(),
    )  # fmt: skip


def private_counts(
    function: Callable[..., Any],
    data: Mapping[str, Any],
    *,
    edges: npt.ArrayLike | Sequence[npt.ArrayLike],
    budget: PrivacyBudget,
    noise: str = "auto",
    public: Mapping[str, Any] | None = None,
    records: Any = None,
) -> PrivateCounts:
    """Release the numbers of records in bins of a function of their data, with noise.

    Parameters
    ----------
    function : callable
        Of one row's data, by name, as for :func:`~pymc_dp.private_sum`. Each coordinate of its result has bins of
        its own.
    data : mapping of str to array, or DataFrame
        Columns of numbers, with the rows on the leading axis.
    edges : array, or sequence of arrays
        Public, ascending edges between the bins, for each coordinate. The first bin is below the first edge, the last
        one has what is on or above the last edge, and what is not a number. For codes from 0 to k - 1 give
        ``np.arange(0.5, k - 1)``.
    budget : PrivacyBudget
        Pays for the release, all of it.
    noise : {"auto", "gaussian", "l2"}
        Law of the noise; ``"auto"`` takes the one with the smaller standard deviation.
    public : mapping of str to array, optional
        Further arguments of the function, the same for all rows, that hold no data of records.
    records : array of int, shape (n_rows,), optional
        The privacy unit that each row belongs to. By default each row is a unit.

    Returns
    -------
    PrivateCounts

    Raises
    ------
    ValueError, TypeError, UnsupportedModel, PrivacyBudgetExhausted
        As :func:`~pymc_dp.private_sum`.

    Notes
    -----
    The L2 sensitivity of ``m`` histograms is ``sqrt(2 m)`` if a record is replaced, ``sqrt(m)`` if it is added or
    removed; the proof is in :mod:`pymc_dp.model.record_function`.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> age = np.random.default_rng(2).uniform(20, 60, size=5000)
    >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=1e-6, chains=1)
    >>> found = dp.private_counts(
    ...     lambda age: age, {"age": age}, edges=[30, 40, 50], budget=budget
    ... )
    >>> len(found.counts[0])
    4
    """
    of_records = _of_records(function, data, public, records)
    inner = _as_edges(edges, of_records)
    term = Bins(inner)
    mechanism = noise_of_all(budget, "private counts", term.n_dim, noise)
    found = release_all(
        budget, "private counts", mechanism, of_records, term, of_records.containers, of_records.n_records
    )  # fmt: skip
    return PrivateCounts(
        inner, tuple(term.split(found.total)), found.noise, _public_number(budget, of_records), budget.report()
    )  # fmt: skip


def _of_records(function: Any, data: Any, public: Any, records: Any) -> RecordFunction:
    if not callable(function):
        raise TypeError(f"function must be a function of a row's columns, such as lambda age: age, got a {type(function).__name__}.")  # fmt: skip
    if records is not None:
        check_labels(records)
    return RecordFunction(function, data, public, records)


def _public_number(budget: PrivacyBudget, of_records: RecordFunction) -> int | None:
    return of_records.n_records if budget.adjacency is Adjacency.SUBSTITUTE else None


def _as_vector(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """An argument with a value for each coordinate of the function's result."""
    array = as_floats(f"values of {name}", value)
    if array.shape not in ((), shape):
        raise ValueError(
            f"{name} must be a number or have the shape of the function's result, {shape}; its shape is {array.shape}."
        )
    return np.broadcast_to(array, shape).reshape(-1)


def _as_edges(edges: Any, of_records: RecordFunction) -> tuple[np.ndarray, ...]:
    """Ascending edges for each coordinate."""
    if np.ndim(edges) == 0 and not isinstance(edges, str):
        raise ValueError(f"edges must be the ascending edges between the bins, such as [30, 40, 50], got {edges!r}: they must be public, so no number of bins will do.")  # fmt: skip
    given = [edges] if of_records.shape == () else list(edges)
    arrays = tuple(as_floats("edges", e).reshape(-1) for e in given)
    if len(arrays) != of_records.n_dim:
        raise ValueError(f"edges must have an array for each of {of_records.n_dim} coordinates, got {len(arrays)}.")  # fmt: skip
    for array in arrays:
        if not (np.isfinite(array).all() and (np.diff(array) > 0).all()):
            raise ValueError(f"edges must be finite and ascending, got {array.tolist()}.")
    return arrays


def _short(values: np.ndarray) -> str:
    """A few numbers, with four digits."""
    flat = np.ravel(values)
    shown = ", ".join(f"{value:.4g}" for value in flat[:6])
    return shown if flat.size == 1 else f"[{shown}{', ...' if flat.size > 6 else ''}]"
