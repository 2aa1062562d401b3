"""Choice between Gaussian and l2 noise for the release of a vector: the one with the smaller standard deviation.

For one release at (1, 1e-6) that is l2 noise: with half of the Gaussian's standard deviation in 4 dimensions, and by
the accountant ``"pld"`` still 1 % less in 300, as its privacy loss is bounded. By Rényi divergences, without the
extra ``pld``, it is l2 noise up to 69 dimensions. (At the pure epsilon 1 its noise would be less up to 16.)
"""

from __future__ import annotations

import math

from pymc_dp.arguments import as_integer, check_epsilon_delta
from pymc_dp.privacy.accounting.calibration import calibrate
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Accesses, Gaussian, Mechanism

#: Least settings that are tried.
_LEAST_EPSILON, _LEAST_MULTIPLIER = 1e-6, 1e-3


def least_noise(
    n_dim: int,
    epsilon: float,
    delta: float,
    *,
    before: Accesses = (),
    count: int = 1,
    noise: str = "auto",
    accountant: str = "best",
) -> Gaussian | L2Laplace:
    """Return the release of a vector that adds least noise to each coordinate, within (epsilon, delta).

    Parameters
    ----------
    n_dim : int
        Dimension of the vector.
    epsilon, delta : float
        Bound on all accesses together, planned before the first of them and claimed at once
        (:meth:`PrivacyBudget.spend(..., plan=) <pymc_dp.PrivacyBudget.spend>`). With
        ``delta = 0`` the noise is l2 noise.
    before : iterable of (Mechanism, int)
        Other accesses of the same plan.
    count : int
        Number of such releases.
    noise : {"auto", "gaussian", "l2"}
        Kind of noise; ``"auto"`` for that with the smaller standard deviation.
    accountant : str
        That of the budget.

    Returns
    -------
    Gaussian or L2Laplace
        Its ``noise_sd`` is the standard deviation of each coordinate in units of the L2 sensitivity.

    Raises
    ------
    ValueError
        If an argument is out of range, the other accesses leave no room, or noise without a finite epsilon is
        asked for at ``delta = 0``.

    Examples
    --------
    >>> dp.privacy.least_noise(4, epsilon=1.0, delta=0)
    L2Laplace(epsilon=1.0, n_dim=4)
    >>> kinds = [
    ...     dp.privacy.least_noise(4, epsilon=1.0, delta=1e-6, noise=kind)
    ...     for kind in ("l2", "gaussian")
    ... ]
    >>> [round(release.noise_sd, 1) for release in kinds]
    [2.2, 4.2]
    """
    n_dim, count = as_integer("n_dim", n_dim, 1), as_integer("count", count, 1)
    epsilon, delta = check_epsilon_delta(epsilon, delta)
    if noise not in ("auto", "gaussian", "l2"):
        raise ValueError(f"noise must be 'auto', 'gaussian' or 'l2', got {noise!r}.")
    others = tuple(before)
    if (cost := Cost.of(others).epsilon(delta, accountant)) >= epsilon:
        raise ValueError(f"The other accesses cost epsilon = {cost:.4g} of {epsilon:g}, so there is none left for a release.")  # fmt: skip

    def plan(mechanism: Mechanism) -> Accesses:
        return (*others, (mechanism, count))

    if delta == 0 and noise != "gaussian":
        share = min((epsilon - cost) / count, L2Laplace.LARGEST_EPSILON)
        while Cost.of(plan(L2Laplace(share, n_dim))).pure_epsilon > epsilon:  # by rounding
            share = math.nextafter(share, 0.0)
        return L2Laplace(share, n_dim)
    least_epsilon, gaussian = _LEAST_EPSILON, None
    if noise != "l2":
        multiplier = calibrate(
            lambda z: plan(Gaussian(z)),
            epsilon,
            delta,
            low=_LEAST_MULTIPLIER,
            accountant=accountant,
        )
        gaussian = Gaussian(multiplier)
        least_epsilon = math.sqrt(n_dim + 1) / gaussian.noise_sd  # as much noise
        if noise == "gaussian" or least_epsilon > L2Laplace.LARGEST_EPSILON:
            return gaussian
        if Cost.of(plan(L2Laplace(least_epsilon, n_dim))).epsilon(delta, accountant) > epsilon:
            return gaussian
    found = calibrate(
        lambda share: plan(L2Laplace(share, n_dim)), epsilon, delta,
        low=least_epsilon, high=L2Laplace.LARGEST_EPSILON, largest=True, accountant=accountant,
    )  # fmt: skip
    return L2Laplace(found, n_dim)
