"""Fit the correction of Barker's test: writes pymc_dp/steps/corrected_barker.json.

Run from the root of the repository: python tools/fit_corrected_barker.py
"""

from __future__ import annotations

import json
import math

import numpy as np

from scipy.optimize import linprog
from scipy.special import expit

from pymc_dp.steps.corrected_barker import CUT, FILE, Mixture, component_shapes

#: For each C: variance of the fitted components; largest error of the sum; largest relative error of its tails.
GOALS = {1.0: (0.04, 0.99e-6, 1e-4), 2.0: (0.01, 7.6e-4, 0.03)}
_STEP, _TAIL_STEP, _TAIL_VARIANCE = 0.1, 0.5, 0.25
#: First and last mean of the components in the tails, whose weights are known.
_JOIN, _LAST = 10.0, 36.0


def fit(noise_variance: float) -> Mixture:
    r"""Fit the correction for one ``C``: four linear programs, deterministic, some seconds.

    Sought are the weights with the smallest slopes (:func:`slopes`, for batch variances up to one)
    among those with small enough an error. With the distribution function ``F`` of the rule at
    variance one and its density ``f``, slopes are the maxima of ``f / (F (1 - F))`` and
    ``|f'| / (2 F (1 - F))``: linear in the weights, with ``F (1 - F)`` from the program before.
    """
    smoothness, error, relative_error = GOALS[noise_variance]
    centre, tail = np.arange(_STEP / 2, _JOIN + 3, _STEP), np.arange(_JOIN, _LAST, _TAIL_STEP)
    means = np.r_[centre, tail]
    variances = np.repeat([smoothness, _TAIL_VARIANCE], [len(centre), len(tail)])
    # exp(-|x|) is exp(-|x| - s**2 / 2) smoothed by N(0, s**2): so the weights in the tails are known.
    scale = np.exp(-means)
    known = 2 * _TAIL_STEP * math.exp(-0.5 * (noise_variance + _TAIL_VARIANCE))
    bounds = [(0, None)] * len(centre) + [(known, known)] * len(tail) + [(0, None)] * 2

    x = np.r_[0:6:0.05, 6:16:0.1]
    logistic = expit(-x)
    allowed = np.minimum(error / logistic, relative_error)

    def shapes(variance: float) -> list[np.ndarray]:
        """Shapes of pairs of components at +-mean."""
        sds = np.sqrt(variance + variances)
        both = zip(component_shapes(x, means, sds), component_shapes(x, -means, sds), strict=True)
        return [(right + left) / 2 * scale for right, left in both]

    def rows(shape: np.ndarray, by: np.ndarray, *slope: float) -> np.ndarray:
        """Rows of ``shape / by``, with the coefficients of the two slopes."""
        return np.c_[shape / by[:, None], np.tile(slope, (len(x), 1))]

    sums, _, _ = shapes(noise_variance)
    tails, density, change = shapes(noise_variance - 1)
    product = logistic * (1 - logistic)
    for _ in range(4):
        limits = [rows(side, logistic, 0, 0) for side in (sums, -sums)]
        limits += [rows(density, product, -1, 0)]
        limits += [rows(side / 2, product, 0, -1) for side in (change, -change)]
        found = linprog(
            # One record in a batch of m moves x by about m**-0.5 and v by about 1/m.
            np.r_[0 * means, 1, 0.1],
            np.vstack(limits),
            np.r_[allowed + 1, allowed - 1, np.zeros(3 * len(x))],
            A_eq=np.r_[scale, 0, 0][None],
            b_eq=[1.0],
            bounds=bounds,
            method="highs-ipm",  # the simplex method alone gives up on some of these
            options={"primal_feasibility_tolerance": 1e-10},
        )
        if found.status != 0:
            raise RuntimeError(f"The fit of the correction distribution failed: {found.message}")
        upper = tails @ found.x[:-2]
        product = upper * (1 - upper)

    half = found.x[:-2] * scale / (2 * scale @ found.x[:-2])
    keep = np.r_[np.flatnonzero(half)[::-1], np.flatnonzero(half)]
    sign = np.repeat([-1, 1], len(keep) // 2)
    result = Mixture(sign * means[keep], variances[keep], half[keep], math.nan)
    x = np.arange(0, 2 * CUT, 1e-3)
    missed = np.abs(result.upper_tail(x[:, None], noise_variance) - expit(-x))
    return result._replace(sup_error=float(missed.max()))


if __name__ == "__main__":
    fits = {str(c): fit(c)._asdict() for c in GOALS}
    text = json.dumps(fits, indent=1, default=np.ndarray.tolist)
    FILE.write_text(text + "\n", encoding="utf-8")
