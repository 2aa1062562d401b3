r"""Terms: all that may be asked of private records. One engine sums them, wherever the records are.

A term is a public value: how a block of records becomes whole numbers, the unit of these numbers, and how far one
record can move their sum, with the proof under the code it is about. Whole numbers add in any order, so the sum is the
same to the last bit wherever the records are, and one record changes it by its own number and nothing else. (A
floating-point sum rounds by amounts that depend on the others: Casacuberta et al. 2022, CCS '22,
https://doi.org/10.1145/3548606.3560708.)

A number of a record is a multiple of a unit :math:`2^e` that depends on public quantities alone: with the number of
records in it, one more record could change the numbers of all others. A clip bound has 2**30 to 2**31 units, so that
sums over 2**31 records, the largest number allowed, stay below 2**62.
"""

from __future__ import annotations

import math

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_dp.codec import published
from pymc_dp.display import Shown
from pymc_dp.model.sums.clipped_vectors import (
    clip_binary_rows,
    clip_rows,
    sum_of_binary,
    sum_of_clipped,
)
from pymc_dp.model.sums.exact_sums import grid
from pymc_dp.model.sums.gradients import Block
from pymc_dp.model.sums.vector_sums import norm_bins, product_exponent, sum_products

#: Of a grid whose unit compiled code may square.
_MAX_EXPONENT = 400
#: Choices of `ClippedScores.clipping`.
CLIPPINGS = ("norm", "outcome_free", "midpoint")
#: Allowance for the truncation of products.
_TRUNCATION = 1 + 2.0**-20


def is_replaced(adjacency: str) -> bool:
    """Whether neighbours differ by a record that is replaced, or else added or removed."""
    if adjacency not in ("substitute", "add_remove"):
        raise ValueError(f"Unknown adjacency {adjacency!r}; choose 'substitute' or 'add_remove'.")
    return adjacency == "substitute"


def _checked_copies(term: Any, *names: str) -> None:
    """Check arguments, and keep arrays as contiguous, writable copies: Numba compiles again for others."""
    for name in names:
        if getattr(term, name) is not None:
            array = np.array(getattr(term, name), dtype=np.float64, order="C")
            object.__setattr__(term, name, array)
    if not getattr(term, "bound", 0.0) >= 0:
        raise ValueError(f"bound must be 0 or more, not {term.bound}")
    if "directions" in names and term.directions is not None:
        shape, n = term.directions.shape, term.theta.size
        if len(shape) not in (1, 2) or shape[0] != n:
            raise ValueError(f"directions must have shape ({n},) or ({n}, k), not {shape}")


@dataclass(frozen=True, eq=False)
class Term(Shown, ABC):
    """What is asked of private records: whole numbers of each record, whose sum is exact. Subclasses are frozen dataclasses.

    Examples
    --------
    >>> term: dp.model.Term = dp.model.ClippedChange(np.ones(1), np.zeros(1), bound=0.25)
    >>> term.n_dim, 2.0**-term.exponent, term.sensitivity("substitute")
    (1, 4294967296.0, 0.5)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Releases name their terms."""
        super().__init_subclass__(**kwargs)
        published(cls)

    @property
    def positions(self) -> list[np.ndarray]:
        """Positions on the unconstrained scale, which must fit the model."""
        return [getattr(self, name) for name in ("new", "old", "theta") if hasattr(self, name)]

    @property
    @abstractmethod
    def exponent(self) -> int:
        """The sum is the whole numbers times ``2.0**exponent``."""

    @property
    @abstractmethod
    def n_dim(self) -> int:
        """How many numbers a record has."""

    @abstractmethod
    def of(self, block: Any) -> np.ndarray:
        """Sum over the records of a block, in whole numbers, shape ``(n_dim,)``."""

    @abstractmethod
    def sensitivity(self, adjacency: str) -> float:
        """Euclidean norm of the largest change of the sum between neighbouring data sets."""


class Source(ABC):
    """Private records, of which sums of terms are asked."""

    @abstractmethod
    def map(self, term: Any, index: np.ndarray | None = None) -> Iterable[np.ndarray]:
        """What a term gives for each block of all records, or of some by number: private."""

    def total(self, term: Term, index: np.ndarray | None = None) -> np.ndarray:
        """Sum of a term over all records, or over some by number: private, in whole numbers of ``2.0**term.exponent``."""
        return sum(self.map(term, index), np.zeros(term.n_dim, dtype=np.int64))

    def noisy(self, term: Term, law: Any, bits: Any) -> np.ndarray:
        """The sum with noise of a :class:`NoiseLaw`, added exactly, shape ``(n_dim,)``; paid for by the caller."""
        return law.add(self.total(term), term.exponent, bits)


@dataclass(frozen=True, eq=False)
class ClippedChange(Term):
    """Change of the log-likelihood between two positions: ``clip(l(new) - l(old), -bound, bound)``.

    Differences of two infinities count as 0, infinite ones as the bound.

    Parameters
    ----------
    new, old : array of float64, shape (n_dim,)
        The two positions, on the unconstrained scale.
    bound : float
        Largest contribution of a record, at least 0; ``inf`` for an ordinary sum of floats, which is not private.

    Raises
    ------
    ValueError
        If `bound` is negative or not a number.

    Examples
    --------
    >>> dp.model.ClippedChange(np.ones(1), np.zeros(1), bound=0.25).sensitivity(
    ...     "add_remove"
    ... )
    0.25
    """

    new: np.ndarray
    old: np.ndarray
    bound: float
    n_dim = 1

    def __post_init__(self) -> None:
        _checked_copies(self, "new", "old")

    @property
    def exponent(self) -> int:
        """Of the grid of the bound."""
        return grid(self.bound)[0] if self.bound < math.inf else 0

    def of(self, block: Block) -> np.ndarray:
        """Each change is rounded to a multiple of the unit, at most the bound."""
        if self.bound == math.inf:
            return block.plain_change(self.new, self.old)
        exponent, limit = grid(self.bound)
        if limit == 0:
            return np.zeros(1, dtype=np.int64)
        return np.array([block.change(self.new, self.old, math.ldexp(1.0, -exponent), float(limit))])  # fmt: skip

    def sensitivity(self, adjacency: str) -> float:
        """A record has a number within the bound: replaced, it changes the sum by twice the bound at most.

        Exchanging `new` and `old` changes the sign of the sum only, as detailed balance requires.
        """
        return (1 + is_replaced(adjacency)) * self.bound


@dataclass(frozen=True, eq=False)
class ClippedScores(Term):
    r"""Gradient of a record's log-likelihood along some directions, shortened to a norm of at most `bound`.

    Parameters
    ----------
    theta : array of float64, shape (n_dim,)
        Position, on the unconstrained scale.
    bound : float
        Largest Euclidean norm of a record's vector, at least 0; ``inf`` for an ordinary sum of the finite gradients,
        which is not private.
    directions : array of float64, shape (n_dim, k) or (n_dim,), optional
        A record's vector is ``directions.T @ gradient``: the columns are directions in the space of ``theta``; a
        vector means a diagonal matrix, None the identity. A function of public quantities and of private releases.
    clipping : {"norm", "outcome_free", "midpoint"}
        What the bound limits: the vector (default); or, for one Bernoulli outcome per record, whose vectors
        :math:`v_1, v_0` have mean zero, the longer of both, by one factor for both (Künsch, Stefanski, Carroll 1989,
        https://doi.org/10.1080/01621459.1989.10478791); or :math:`\pm (v_1 - v_0) / 2`, which replace them.
    keeps_logp : bool
        Whether to keep log-likelihoods for the next :class:`ClippedChange`. False by default.

    Raises
    ------
    ValueError
        If `bound` is negative or not a number.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("y", pm.Normal("mu", 0, 10), 1.0, observed=np.zeros(100))
    >>> term = dp.model.ClippedScores(np.array([1.0]), bound=0.5)
    >>> np.ldexp(dp.model.RecordLikelihood(model).total(term), term.exponent).round(6)
    array([-50.])
    """

    theta: np.ndarray
    bound: float
    directions: np.ndarray | None = None
    clipping: str = "norm"
    keeps_logp: bool = False

    def __post_init__(self) -> None:
        _checked_copies(self, "theta", "directions")
        if self.clipping not in CLIPPINGS:
            raise ValueError(
                f"clipping must be one of {', '.join(CLIPPINGS)}, got {self.clipping!r}."
            )

    @property
    def exponent(self) -> int:
        """Of the grid of the bound."""
        return grid(self.bound)[0] if self.bound < math.inf else 0

    @property
    def n_dim(self) -> int:
        """Number of directions."""
        return len(self.theta) if self.directions is None else self.directions.shape[-1]

    def of(self, block: Block) -> np.ndarray:
        """Vectors are clipped, and each coordinate is truncated, towards zero, to a multiple of the unit.

        A vector that is not finite, or too long to be squared (1e154, or as many units), counts as zero: a rule of one
        record alone. Vectors have the same roundings in any place, block and number of threads (`RowFunction`).
        """
        if self.bound == math.inf:
            return block.plain_gradients(self.theta, self.directions)
        total, (exponent, limit) = np.zeros(self.n_dim, dtype=np.int64), grid(self.bound)
        if limit == 0 or self.n_dim == 0:
            return total
        # Of the proof below: twice the margin.
        length = math.ldexp(self.bound, -exponent) * (1 - (self.n_dim + 16) * 2.0**-52)
        unit, is_extreme = math.ldexp(1.0, -exponent), abs(exponent) > _MAX_EXPONENT
        if not ((is_binary := self.clipping != "norm") or is_extreme):
            found = block.clipped_sum(self.theta, self.directions, unit, length, self.keeps_logp)
            if found is not None:
                return found
        if self.keeps_logp:
            block.keep(self.theta)
        for vectors, logp in block.vectors(self.theta, self.directions, is_binary):
            if is_binary:
                total += sum_of_binary(self.clipping, vectors, logp, unit, length).astype(np.int64)
            elif is_extreme:
                with np.errstate(over="ignore", invalid="ignore"):
                    total += sum_of_clipped(vectors * unit, 1.0, length, block.by_column)
            else:
                total += sum_of_clipped(vectors, unit, length, block.by_column)
        return total

    def clipped(self, vectors: np.ndarray, logp: np.ndarray) -> np.ndarray:
        """Vectors of simulated records, public and in floats, clipped by the same rule; in place if by their norm."""
        if self.clipping == "norm":
            return clip_rows(vectors, self.bound)
        return clip_binary_rows(self.clipping, vectors, logp, self.bound)

    def sensitivity(self, adjacency: str) -> float:
        """A record's vector of whole numbers is no longer than the bound: replaced, the sum changes by twice that.

        The norm is computed from `n` squares and as many additions, a root, a division and four products, with relative
        errors of 2**-53 each: less than ``(n / 2 + 7) * 2**-53`` in all. (A ratio of norms, whatever its error, multiplies
        the norm that is clipped and the vector alike.) The length to which vectors are clipped is
        shorter by twice this margin, and truncation makes them shorter still.
        """
        return (1 + is_replaced(adjacency)) * self.bound


@dataclass(frozen=True, eq=False)
class ScoreNorms(Term):
    """Bin of the norm of a record's score, not clipped; norms that are not finite count in the last bin.

    Parameters
    ----------
    theta : array of float64, shape (n_dim,)
        Position, on the unconstrained scale.
    directions : array of float64, shape (n_dim, k)
        Columns along which derivatives are taken.
    edges : array of float64, shape (n_bins - 1,)
        Between the bins, ascending.

    Examples
    --------
    >>> dp.model.ScoreNorms(np.zeros(1), np.eye(1), np.array([1.0, 2.0])).n_dim
    3
    """

    theta: np.ndarray
    directions: np.ndarray
    edges: np.ndarray
    exponent = 0

    def __post_init__(self) -> None:
        _checked_copies(self, "theta", "directions", "edges")

    @property
    def n_dim(self) -> int:
        """Number of bins."""
        return len(self.edges) + 1

    def of(self, block: Block) -> np.ndarray:
        """Numbers of records."""
        counts = np.zeros(self.n_dim, dtype=np.int64)
        for vectors, _ in block.vectors(self.theta, self.directions):
            bins = norm_bins(np.ascontiguousarray(vectors), self.edges)
            counts += np.bincount(bins, minlength=self.n_dim)
        return counts

    def sensitivity(self, adjacency: str) -> float:
        """A replaced record lowers one count by 1 and raises another by 1, a removed one lowers one."""
        return math.sqrt(1 + is_replaced(adjacency))


@dataclass(frozen=True, eq=False)
class ScoreProducts(Term):
    """Products of the coordinates of a record's clipped score.

    Of coordinates ``(1, 1), (1, 2), ..., (k, k)``, those of different ones times the root of 2.

    Parameters
    ----------
    theta : array of float64, shape (n_dim,)
        Position, on the unconstrained scale.
    directions : array of float64, shape (n_dim, k)
        A record's vector is ``directions.T @ gradient``.
    bound : float
        Largest Euclidean norm of a record's vector, finite.

    Raises
    ------
    ValueError
        If `bound` is negative, infinite or not a number.

    Examples
    --------
    >>> dp.model.ScoreProducts(np.zeros(2), np.eye(2), bound=1.0).n_dim
    3
    """

    theta: np.ndarray
    directions: np.ndarray
    bound: float

    def __post_init__(self) -> None:
        _checked_copies(self, "theta", "directions")
        if not 0 <= self.bound < math.inf:
            raise ValueError(f"bound must be 0 or more, and finite, not {self.bound}")

    @property
    def exponent(self) -> int:
        """Of the grid of the square of the bound."""
        return product_exponent(self.bound)

    @property
    def n_dim(self) -> int:
        """Number of pairs of directions."""
        d = self.directions.shape[1]
        return d * (d + 1) // 2

    def of(self, block: Block) -> np.ndarray:
        """Products are truncated to multiples of the unit."""
        vectors = (v for v, _ in block.vectors(self.theta, self.directions))
        return sum_products(vectors, self.directions.shape[1], self.bound)

    def sensitivity(self, adjacency: str) -> float:
        """The products of ``s`` have the norm ``|s|**2``, and inner products ``(s't)**2 >= 0`` with those of ``t``.

        So the square of the distance of two such vectors is at most the sum of their squares.
        """
        return math.sqrt(1 + is_replaced(adjacency)) * self.bound**2 * _TRUNCATION
