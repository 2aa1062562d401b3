r"""Amplification by subsampling: Gaussian releases on a random batch of the records.

Notation: ``q`` is the probability that a given record is in the batch, ``mu`` one over the noise
multiplier. Given the rest of the batch, the release has the law ``P = (1 - q) A + q B`` under one
data set and ``Q = (1 - q) A + q B'`` under its neighbour, where ``A`` (the record is not in the
batch), ``B`` and ``B'`` (it is, with one value or the other) are Gaussians with unit noise.
Divergences are jointly convex, so averaging over the rest of the batch never increases them.

* Add/remove, Poisson sampling: one of the two laws is ``A``, and ``B`` is at most ``mu`` away.
* Substitution: the three means are pairwise at most ``mu`` apart. Without replacement ``A`` has
  another record in place of this one; with Poisson sampling no record, so ``A`` is closer still.

Functions return the cumulant ``(order - 1) * divergence``, which is convex in the order and 0 at
order 1, so that a bound at whole orders gives one at all (:func:`between_whole_orders`).
"""

from __future__ import annotations

import math

from collections.abc import Callable

import numpy as np

from scipy.special import gammaln, logsumexp

from pymc_dp.privacy.mechanisms.mechanism import gaussian_profile

# Relative allowance for quadrature and rounding, added to costs.
_SAFETY = 1 + 1e-8
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _panels(low: float, high: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log-weights of Gauss-Legendre quadrature on panels of about the given width."""
    edges = np.linspace(low, high, max(2, math.ceil((high - low) / width) + 1))
    half = (edges[1:] - edges[:-1])[:, None] / 2
    nodes = edges[:-1, None] + half * (1 + _NODES)
    return nodes.ravel(), np.log(half * _WEIGHTS).ravel()


def _far_cumulant(orders: np.ndarray, q: float, mu: float, exchanged: bool) -> np.ndarray:
    r"""Closed-form bounds, tight for large divergences.

    Joint convexity gives :math:`1 - q + q\,e^{\alpha (\alpha - 1) \mu^2 / 2}` for the moment;
    Minkowski's inequality, for the norm of ``P / Q`` in :math:`L^\alpha(Q)`, gives :math:`(1 - q +
    q\,e^{(\alpha - 1) \mu^2 / 2})^\alpha`, times :math:`(1 - q)^{1 - \alpha}` if ``Q`` is a mixture
    too.
    """
    log_q, log_rest = math.log(q), math.log1p(-q)
    convex = np.logaddexp(log_rest, log_q + orders * (orders - 1) * mu**2 / 2)
    norm = orders * np.logaddexp(log_rest, log_q + (orders - 1) * mu**2 / 2)
    if exchanged:
        norm = norm - (orders - 1) * log_rest
    return np.minimum(convex, norm)


def between_whole_orders(
    orders: np.ndarray, cumulant: Callable[[np.ndarray], np.ndarray], lowest: int, highest: int
) -> np.ndarray:
    """Bound on the cumulant at all orders up to ``highest``, from one at whole orders from ``lowest``; infinite above.

    It is the chord between known orders: the true cumulant is convex and 0 at order 1, so chords lie above it.
    """
    result = np.full(orders.shape, np.inf)
    inside = orders <= highest
    if not inside.any():
        return result
    below = np.maximum(np.floor(orders[inside]), lowest)
    above = np.maximum(np.ceil(orders[inside]), lowest)
    known = np.unique(np.concatenate([below, above]))
    table = np.concatenate([[0.0], cumulant(known.astype(int))])
    result[inside] = np.interp(orders[inside], np.concatenate([[1.0], known]), table)
    return result


def poisson_cumulant(orders: np.ndarray, q: float, mu: float) -> np.ndarray:
    """Poisson sampling under add/remove: exact, by quadrature.

    The larger direction is that of the mixture against the plain Gaussian (Theorem 5 of Mironov,
    Talwar, Zhang 2019, https://arxiv.org/abs/1908.10530).
    """
    result = _far_cumulant(orders, q, mu, exchanged=False)
    near = orders * mu**2 <= 200
    # Chunks of orders share a grid, whose range is that of the largest order.
    for chunk in np.array_split(np.flatnonzero(near), max(1, near.sum() // 32)):
        if chunk.size == 0:
            continue
        order = orders[chunk][:, None]
        x, log_weight = _panels(-13.0, order.max() * mu + 13.0, min(2.0, 1 / mu))
        log_ratio = np.log1p(q * np.expm1(mu * x - mu**2 / 2))
        # E[r^order] - 1 = E[r^order - 1 - order (r - 1)]: without first-order terms, which would cancel with
        # rounding errors.
        log_normal = log_weight - x**2 / 2 - 0.5 * math.log(2 * math.pi)
        exponent = order * log_ratio
        small = np.abs(exponent) < 1
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.expm1(exponent) - order * np.expm1(log_ratio)
        excess = np.sum(np.where(small, part, 0) * np.exp(log_normal), axis=1)
        rest = np.where(small, -np.inf, log_normal + exponent)
        linear = 1 + order * np.expm1(
            log_ratio
        )  # may be negative: subtracted outside the logarithm
        with np.errstate(over="ignore"):
            excess = excess - np.sum(np.where(small, 0, linear * np.exp(log_normal)), axis=1)
        total = logsumexp(rest, axis=1)
        exact = np.where(total < 600, np.log1p(np.exp(np.minimum(total, 600)) + excess), total)
        # The second term covers rounding for very small sampling probabilities.
        exact = exact * _SAFETY + 1e-24 * orders[chunk] * (orders[chunk] - 1)
        result[chunk] = np.minimum(result[chunk], exact)
    return result


def poisson_profiles(epsilons: np.ndarray, q: float, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Hockey-stick divergences of ``(1 - q) A + q B`` against ``A``, and of ``A`` against it: exact.

    At any real epsilon; each is a multiple of a divergence between ``B`` and ``A``.
    """
    epsilons = np.clip(epsilons, -1e9, 1e9)  # differences of infinities would be NaN
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        shift = np.expm1(epsilons)
        log_t = np.where(epsilons > 30, epsilons - math.log(q), np.log1p(shift / q))
        mixture_first = q * np.exp(gaussian_profile(log_t, mu))
        left = q - shift * (1 - q)
        mixture_last = left * np.exp(gaussian_profile(epsilons + math.log(q) - np.log(left), mu))
    return (
        np.clip(np.where(shift <= -q, -shift, mixture_first), 0, 1),
        np.clip(np.where(left <= 0, 0.0, mixture_last), 0, 1),
    )


def dominating_profile(epsilons: np.ndarray, q: float, mu: float) -> np.ndarray:
    r"""Hockey-stick divergences under substitution, for sampling without replacement or Poisson.

    For ``t = exp(epsilon) >= 1`` and ``t' = 1 + (t - 1) / q``,

    .. math:: P - t Q = q\,[B - t'((1 - \beta) A + \beta B')], \qquad \beta = t / t',

    so the divergence at ``t`` is ``q`` times one at ``t'`` between ``B`` and a mixture of ``A`` and
    ``B'``: at most that between Gaussians ``mu`` apart (Theorems 2 and 9 of Balle, Barthe, Gaboardi
    2018, https://arxiv.org/abs/1807.01647), with equality when ``A = B'``. Substitution is
    symmetric, which gives the values for ``t < 1``. Together they are the profile of a dominating
    pair, and such pairs compose. No single pair of data sets has this profile: composing the pair
    ``A = B'`` with itself would underestimate the cost (Lebeda et al. 2024,
    https://arxiv.org/abs/2405.20769).
    """
    delta = poisson_profiles(np.abs(epsilons), q, mu)[0]
    low = np.minimum(epsilons, 0)
    return np.clip(np.where(epsilons >= 0, delta, -np.expm1(low) + np.exp(low) * delta), 0, 1)


def exchange_cumulant(orders: np.ndarray, q: float, mu: float) -> np.ndarray:
    r"""Rényi bound of the dominating pair of :func:`dominating_profile`, by quadrature.

    Every f-divergence is an integral of hockey-stick divergences; for the power ``alpha``, after
    folding ``t < 1`` onto ``t > 1``,

    .. math::
        e^{(\alpha - 1) D_\alpha} - 1
          = \alpha (\alpha - 1) \int_1^\infty (t^{\alpha - 2} + t^{-\alpha - 1})\, H_t \, dt.
    """
    result = _far_cumulant(orders, q, mu, exchanged=True)
    near = orders * mu**2 <= 200
    for chunk in np.array_split(np.flatnonzero(near), max(1, near.sum() // 32)):
        if chunk.size == 0:
            continue
        order = orders[chunk][:, None]
        # Integrated over x = log t'.
        x, log_weight = _panels(0.0, order.max() * mu**2 + 13 * mu, min(2 * mu, 1.0))
        log_t = np.log1p(q * np.expm1(x))
        log_power = np.logaddexp((order - 2) * log_t, -(order + 1) * log_t)
        log_h = math.log(q) + gaussian_profile(x, mu)
        log_terms = log_power + (log_h + math.log(q) + x + log_weight)
        top = log_terms.max(axis=1)
        log_integral = top + np.log(np.sum(np.exp(log_terms - top[:, None]), axis=1))
        log_excess = np.log(orders[chunk] * (orders[chunk] - 1)) + log_integral
        result[chunk] = np.minimum(result[chunk], np.logaddexp(0, log_excess) * _SAFETY)
    return result


def _falling(x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``x (x - 1) ... (x - n + 1)`` for each count ``n``, one row each."""
    return np.array([np.prod([x - i for i in range(n)], axis=0) * np.ones_like(x) for n in counts])


def taylor_cumulant(orders: np.ndarray, q: float, mu: float) -> np.ndarray:
    r"""Expansion in ``q``, exact to second order, with bounds on higher ones: substitution, whole orders.

    With ``u = B/A - 1`` and ``v = B'/A - 1`` the moment is :math:`F(q) = E_A[(1 + q u)^\alpha
    (1 + q v)^{1 - \alpha}]`; ``F(0) = 1``, ``F'(0) = 0`` and ``F''(0) = alpha (alpha - 1) E[(u -
    v)^2]``, where the expectation is largest when the three means form an equilateral triangle:
    ``2 (exp(mu^2) - exp(mu^2 / 2))``.

    The ``k``-th derivative at 0 is :math:`(\alpha - 1) \alpha^{k-1} E[(u - v)^k]` plus terms of
    lower order in alpha, each bounded by Hölder's inequality through :math:`b_k = E|u|^k`. And
    ``E[(u - v)^k]`` is at most ``4 b_k`` (``3 b_k`` for odd ``k``): where ``A`` exceeds ``B`` or
    ``B'``, replace it by that density, which costs ``b_k`` each; elsewhere ``u, v >= 0`` and ``(u -
    v)^k <= u^k + v^k`` (``u^k`` if odd). All moments grow with the distance of the means (they are
    f-divergences).

    The remainder is the last derivative at ``s q``, averaged over ``s`` with density ``k (1 - s)^(k -
    1)``. Powers of ``1 + s q |u|`` expand into moments to which Hölder's inequality applies again,
    and sum up to ``E[|u|^k (1 + s q |u|)^p]``; the mean over ``s`` of the last factor is at most ``(1 +
    c)^p`` and at most ``k! (1 + c)^(p + k) / ((p + 1) ... (p + k) c^k)``, ``c = q |u|``.

    After Theorem 3.4 of Birrell, Ebrahimi, Behnia, Pacheco (2024), https://arxiv.org/abs/2408.10456. Tightest
    for small ``q`` and much noise.
    """
    result = np.full(len(orders), np.inf)
    usable = np.flatnonzero((orders * mu <= 40) & (orders <= 256))
    if usable.size == 0 or q >= 0.5 or mu > 2:  # the other bounds are tighter there
        return result
    alpha = orders[usable].astype(float)
    x, log_weight = _panels(-13.0, (alpha.max() + 8) * mu + 13.0, min(2.0, 1 / mu))
    log_density = log_weight - x**2 / 2 - 0.5 * math.log(2 * math.pi)
    size = np.abs(np.expm1(mu * x - mu**2 / 2))
    growth = np.log1p(q * size)
    with np.errstate(divide="ignore"):
        log_odds = growth - np.log(q * size)
    log_beta = gammaln(np.arange(8) + 1)
    series = q**2 * alpha * (alpha - 1) * (math.exp(mu**2) - math.exp(mu**2 / 2))
    best = np.full(len(alpha), np.inf)
    for k in range(3, 7):
        with np.errstate(divide="ignore"):
            log_moment = log_density + k * np.log(size)
        # Coefficient of E[u^j v^(k - j)] in the k-th derivative.
        j = np.arange(k + 1)
        choose = np.array([math.comb(k, i) for i in j], dtype=float)
        exact = choose[:, None] * _falling(alpha, j) * _falling(1 - alpha, k - j)
        leading = choose[:, None] * (alpha - 1) * alpha ** (k - 1) * (-1.0) ** (k - j)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            # Remainder if the expansion ends before order k, with the mean over s of (1 + s q u)^p.
            power = np.maximum(alpha[None, :, None] - j[:, None, None], 0)
            log_mean = np.minimum(0, log_beta[k] - gammaln(power + k + 1) + gammaln(power + 1) + k * log_odds)  # fmt: skip
            extra = np.exp(power * growth + log_mean + log_moment).sum(axis=-1)
            decay = (1 - q) ** -(alpha + k - j[:, None] - 1)
            remainder = q**k / math.factorial(k) * np.sum(np.abs(exact) * decay * extra, axis=0)
            best = np.fmin(best, series + remainder)
        rest = np.sum(np.abs(exact - leading), axis=0)
        largest = 4 if k % 2 == 0 else 3
        bound = (alpha - 1) * alpha ** (k - 1) * largest + rest
        series = series + q**k / math.factorial(k) * bound * np.exp(log_moment).sum()
    result[usable] = np.log1p(best) * _SAFETY
    return result
