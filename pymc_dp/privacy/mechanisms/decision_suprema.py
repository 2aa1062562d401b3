"""Cost of one accept/reject decision: maximisations over the log-ratio.

Each cost is a supremum over all log-ratios ``x`` of a divergence between two laws of one bit. Samplers differ
in the pairs of laws that a change of one record can cause at ``x``; a *pair* is a function that returns both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from scipy.special import ndtri_exp

from pymc_dp.acceptance import AcceptanceRule, Metropolis, Penalty

#: ``(log accept, log reject)`` at each log-ratio.
Law = tuple[np.ndarray, np.ndarray]
#: Laws of the bit under one data set and under its neighbour, as functions of the log-ratio.
Pair = Callable[[np.ndarray], tuple[Law, Law]]

# Relative allowance for the maximisation and for rounding, added to costs.
_SAFETY = 1 + 1e-7
#: Privacy profiles are constant above it, so that exp(epsilon) does not overflow.
LARGEST_EPSILON = 600.0
# Limits of the search: above them numbers would overflow, or the change of one record would be lost in the
# rounding of log-ratios. Closed forms are used there.
_LARGEST_SENSITIVITY, LARGEST_NOISE = 1e9, 1e4
# Fraction of a peak that a coarse grid may miss: far out its spacing is about the width of a peak.
_COARSE_ERROR = 0.2


def decision_pairs(
    rule: AcceptanceRule, sensitivity: float, sampling_probability: float = 1.0
) -> list[Pair]:
    """Worst pairs of a decision that uses the record with some probability.

    Let ``p0`` be the acceptance probability without the record, ``p1`` and ``p1'`` those with
    either of its values; all three log-ratios lie within one sensitivity of each other. The two
    laws are ``(1 - q) p0 + q p1`` and ``(1 - q) p0 + q p1'``. For a monotone rule the divergence
    grows as ``p1`` and ``p1'`` move apart, so they are a full sensitivity apart with ``p0`` between
    them; and it is convex in ``p0``, hence largest where ``p0`` equals one of them.
    """
    if sampling_probability == 1:
        return [lambda x: (rule.log_probabilities(x + sensitivity), rule.log_probabilities(x))]

    def mixed(without: np.ndarray, given: np.ndarray) -> np.ndarray:
        change = given - without
        near = np.log1p(sampling_probability * np.expm1(np.minimum(change, 1.0)))
        far = np.logaddexp(np.log1p(-sampling_probability), np.log(sampling_probability) + change)
        return without + np.where(change < 1, near, far)

    def pair(shift: float) -> Pair:
        def laws(x: np.ndarray) -> tuple[Law, Law]:
            without, given = rule.log_probabilities(x), rule.log_probabilities(x + shift)
            return (mixed(without[0], given[0]), mixed(without[1], given[1])), without

        return laws

    return [pair(sensitivity), pair(-sensitivity)]


def _is_beyond(rule: AcceptanceRule, sensitivity: float) -> bool:
    inner = rule.inner
    noise = inner.scale if isinstance(inner, Penalty) else 0.0
    return sensitivity > _LARGEST_SENSITIVITY or noise > LARGEST_NOISE


@lru_cache(maxsize=16384)
def decision_renyi(
    rule: AcceptanceRule,
    sensitivity: float,
    orders: tuple[float, ...],
    sampling_probability: float = 1.0,
) -> np.ndarray:
    """Rényi divergence of a decision by a monotone rule, at each order > 1, rounded up; read-only.

    The supremum over all real log-ratios and both directions; infinite beyond the range of the search.
    """
    if _is_beyond(rule, sensitivity):
        return np.full(len(orders), np.inf)
    alpha = np.array(orders)[:, None]

    def value(p: Law, q: Law, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return bernoulli_divergence(p, q, alpha[rows])

    pairs = decision_pairs(rule, sensitivity, sampling_probability)
    result = _supremum(pairs, value, _grid(rule, sensitivity, alpha.max())) * _SAFETY
    if not np.all(np.isfinite(result)):  # should not happen, but a NaN must never become a cost
        raise ArithmeticError(f"No cost was found for {rule.name} at sensitivity {sensitivity!r}.")
    result.flags.writeable = False
    return result


@lru_cache(maxsize=256)
def decision_profile(
    rule: AcceptanceRule, sensitivity: float, sampling_probability: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Hockey-stick divergences of a decision, rounded up: knots and values for :func:`interpolate_profile`.

    At each knot (a value of epsilon from 0 on) the supremum over all real log-ratios and both directions. A divergence
    is convex in ``exp(epsilon)``, so chords between knots lie above it, and it falls after the last knot.
    """
    if _is_beyond(rule, sensitivity):
        return np.array([0.0, LARGEST_EPSILON]), np.ones(2)
    pairs = decision_pairs(rule, sensitivity, sampling_probability)
    grid = _grid(rule, sensitivity, 2.0)
    reach = 0.0
    for pair in pairs:
        for one, other in (pair(grid), pair(grid)[::-1]):
            for a, b in zip(one, other, strict=True):
                reach = max(reach, float(np.max(np.where(a > np.log(1e-18), a - b, 0))))
    knots = np.linspace(0, min(reach, LARGEST_EPSILON), 257)
    epsilon = knots[:, None]

    def value(p: Law, q: Law, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return bernoulli_excess(p, q, epsilon[rows])

    return knots, np.minimum(_supremum(pairs, value, grid) * _SAFETY, 1.0)


@lru_cache(maxsize=16384)
def decision_mu(rule: AcceptanceRule, sensitivity: float) -> float:
    r"""Smallest ``mu`` such that the decision is ``mu``-GDP, rounded up; infinity beyond the range of the search.

    A bit with laws ``(p, 1 - p)`` and ``(q, 1 - q)``, ``p > q``, has a trade-off curve (least type II
    error at each level) that is piecewise linear, through (0, 1), the vertex ``(q, 1 - p)`` and (1, 0).
    The curve of ``mu``-GDP, :math:`G_\mu(x) = \Phi(\Phi^{-1}(1 - x) - \mu)`, is convex and also
    passes through (0, 1) and (1, 0). So it lies below the former everywhere if and only if it does at
    the vertex: :math:`\Phi(\Phi^{-1}(1 - q) - \mu) \le 1 - p`, which is
    :math:`\Phi^{-1}(p) - \Phi^{-1}(q) \le \mu`. The opposite direction gives the same condition,
    as :math:`G_\mu` is its own inverse. For a monotone rule no smaller shift costs more. Hence

    .. math:: \mu = \sup_x \left| \Phi^{-1}(a(x + \Delta)) - \Phi^{-1}(a(x)) \right| .

    For :class:`~pymc_dp.acceptance.Penalty` itself the supremum is ``Delta / s``, at infinity, which the search
    does not find. (Dong, Roth, Su 2022, https://doi.org/10.1111/rssb.12454.)
    """
    if _is_beyond(rule, sensitivity):
        return np.inf

    def probit(law: Law) -> np.ndarray:
        accept, reject = law
        return np.where(accept < reject, ndtri_exp(accept), -ndtri_exp(reject))

    def value(p: Law, q: Law, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        one, other = probit(p), probit(q)
        certain = np.isinf(one) | np.isinf(other)  # the outcome is certain
        change = np.abs(np.where(certain, 0, one) - np.where(certain, 0, other))
        return change + np.where(certain, 0, 1e-14 * (1 + np.abs(one)))  # rounding of each

    found = _supremum(decision_pairs(rule, sensitivity), value, _grid(rule, sensitivity, 2.0))
    return float(found[0]) * _SAFETY


def interpolate_profile(knots: np.ndarray, values: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Evaluate the bound between the knots of :func:`decision_profile`, at any real epsilon.

    Below 0 by symmetry: neighbours can be exchanged, so
    ``delta(-epsilon) = 1 - exp(-epsilon) + exp(-epsilon) * delta(epsilon)``.
    """
    epsilons = np.asarray(epsilons, dtype=float)
    size = np.minimum(np.abs(epsilons), LARGEST_EPSILON)
    delta = np.interp(np.expm1(size), np.expm1(knots), values)
    low = np.minimum(epsilons, 0)
    return np.where(epsilons >= 0, delta, -np.expm1(low) + np.exp(low) * delta)


def coarse_grid(
    rule: AcceptanceRule, sensitivity: float, largest_order: float, size: int = 801
) -> np.ndarray:
    """Log-ratios, shape (1, size), dense where both outcomes are likely, up to where one is certain."""
    # As a function of x, the divergence varies on the scale of the noise where both outcomes are likely, and on
    # that of alpha * sensitivity far out.
    inner = rule.inner
    centre, unit, reach = 0.0, 1.0, 60 + 4 * sensitivity * largest_order
    if isinstance(inner, Penalty):
        # With much noise, even proposals with a log-ratio of 0 are rarely accepted.
        centre, unit = inner.scale**2 / 2, inner.scale
        reach = max(reach, 2 * centre + 40 * unit + largest_order * sensitivity)
    grid = centre + unit * np.sinh(np.linspace(-1, 1, size) * np.arcsinh(reach / unit))
    return grid[None, :]


def _grid(rule: AcceptanceRule, sensitivity: float, largest_order: float) -> np.ndarray:
    """The coarse grid, with the kinks of a rule, where the supremum is attained; with little noise, its bends."""
    grid, inner = coarse_grid(rule, sensitivity, largest_order), rule.inner
    if isinstance(inner, Metropolis):
        return np.union1d(grid, [-sensitivity, 0.0, sensitivity])[None, :]
    if not isinstance(inner, Penalty) or inner.scale >= sensitivity:
        return grid
    bends = inner.scale**2 / 2 + np.array([[-sensitivity], [0.0], [sensitivity]])
    grid = np.union1d(grid, bends + inner.scale * np.linspace(-8, 8, 65))
    # Peaks are refined between neighbours, which must not coincide.
    return grid[None, np.diff(grid, prepend=-np.inf) > 1e-3 * inner.scale]


def _supremum(
    pairs: Sequence[Pair], value: Callable[..., np.ndarray], coarse: np.ndarray
) -> np.ndarray:
    """Maximise over the log-ratio, for each row of ``value``, the pairs and both directions.

    Each direction of each pair has its own peaks, and the highest may look lower on a coarse grid: all that are
    close to the highest are refined.
    """
    best = None
    for pair in pairs:
        one, other = pair(coarse)
        for reverse in (False, True):
            height = value(other, one) if reverse else value(one, other)
            inside = height[:, 1:-1]
            top = height.max(axis=1)
            peaks = (inside >= height[:, :-2]) & (inside >= height[:, 2:])
            peaks &= (inside >= (1 - _COARSE_ERROR) * top[:, None]) & (inside > 0)
            # A plateau, where the decision is nearly certain, counts as one peak.
            peaks[:, 1:] &= ~peaks[:, :-1]
            rows, at = np.nonzero(peaks)
            low, high = coarse[0, at], coarse[0, at + 2]
            # The final spacing is 1/4000 of the coarse one, and the error of a maximum its square: 6 rounds
            # divide it by 4 each or, faster if there are few peaks, 2 rounds by 64.
            rounds, cells = (6, 8) if len(rows) > 24 else (2, 128)
            for _ in range(rounds):
                grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, cells + 1)
                p, q = pair(grid)
                fine = value(q, p, rows) if reverse else value(p, q, rows)
                np.maximum.at(top, rows, fine.max(axis=1))
                middle = np.clip(np.argmax(fine, axis=1), 1, cells - 1)
                each = np.arange(len(rows))
                low, high = grid[each, middle - 1], grid[each, middle + 1]
            best = top if best is None else np.maximum(best, top)
    if best is None:
        raise ValueError("There is no pair of laws to maximise over.")
    return best


def bernoulli_divergence(p: Law, q: Law, alpha: np.ndarray) -> np.ndarray:
    """Rényi divergence between two laws of a bit."""
    # sum q e^{alpha u} over both outcomes, minus 1, minus alpha times the identity sum q (e^u - 1) = 0:
    # first-order terms cancel before rounding.
    excess, exponents = 0.0, []
    for log_p, log_q in zip(p, q, strict=True):
        change = log_p - log_q
        growth = alpha * change
        exponents.append(log_q + growth)
        near = np.abs(growth) < 1
        weight, linear = np.exp(log_q), np.expm1(np.minimum(change, 1.0))
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.exp(exponents[-1], where=~near, out=np.zeros_like(growth))
            part -= np.where(near, 0, weight + alpha * (np.exp(log_p) - weight))
            small = np.expm1(growth, where=near, out=np.zeros_like(growth))
            part += np.where(near, weight * (small - alpha * linear), 0)
        excess = excess + part
    largest = np.maximum(*exponents)
    with np.errstate(invalid="ignore"):
        cumulant = np.log1p(np.maximum(excess, -0.5))
    over = largest > 600
    if over.any():
        cumulant[over] = np.logaddexp(exponents[0][over], exponents[1][over])
    return cumulant / (alpha - 1)


def bernoulli_excess(p: Law, q: Law, epsilon: np.ndarray) -> np.ndarray:
    """Hockey-stick divergence of order ``exp(epsilon) >= 1`` between two laws of a bit."""
    accept, reject = (
        np.exp(a) * -np.expm1(np.minimum(epsilon + b - a, 0)) for a, b in zip(p, q, strict=True)
    )
    return np.maximum(accept, reject)
