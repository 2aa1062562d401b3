"""The clip bound of predictive differences: chosen on records simulated from both released models.

For a bound ``b`` the error has two parts. *Noise* is in proportion to ``b``. *Bias* is the sum of what clipping cuts
off: its mean under the model where that is larger, a tenth of its mean absolute value, since both models may be wrong
about the records, and its standard deviation. The bound with the least sum of squares is taken.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm

from pymc_dp.display import Shown
from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.predictive_densities import log_predictive
from pymc_dp.planning.local_information import MODEL_MISFIT_FRACTION
from pymc_dp.planning.simulator import Simulator

#: Records simulated from each model: at least so many, but of at most so many data sets, and at most so many of one.
_LEAST, _MOST_SETS, _MOST = 20_000, 100, 50_000
#: Candidates for the bound: quantiles of the simulated differences' sizes, and a factor above the largest one.
_QUANTILES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
_MARGIN = 1.2


@dataclass(frozen=True)
class ClipForecast(Shown):
    """What a clip bound does to simulated records: public.

    Parameters
    ----------
    bound : float
        In units of the log-likelihood (nats).
    clipped : float
        Fraction of records that are clipped, under the model with more of them.
    bias : tuple of float
        Sum over all records of what clipping cuts off, expected under each of the two models: what to add to the
        clipped sum.
    spread : float
        Standard deviation of that sum over data sets, under the model where it is larger.
    misfit : float
        Error that is allowed for, as both models may be wrong about what is cut off: a tenth of the sum of its
        absolute values.

    Examples
    --------
    >>> dp.comparison.ClipForecast(2.0, 0.01, (-1.0, 3.0), 0.5, 0.25).largest_bias
    3.25
    """

    bound: float
    clipped: float
    bias: tuple[float, float]
    spread: float
    misfit: float

    @property
    def largest_bias(self) -> float:
        """Under the model with more of it, with the allowance for misfit."""
        return max(abs(b) for b in self.bias) + self.misfit


def simulated_differences(
    simulators: Sequence[Simulator], draws: Sequence[np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Predictive differences of records simulated from the first model and from the second."""
    models = [s.simulated for s in simulators]
    names = [_observed_names(s) for s in simulators]
    if {*names[0]} != {*names[1]} or models[0].n_records != models[1].n_records:
        raise ValueError(
            f"Simulated records of one model must be records of the other one: the (stand-in) models have the observed variables "
            f"{names[0]} and {names[1]}, and {models[0].n_records} and {models[1].n_records} records. Give stand-ins of the same rows, "
            "or bound=."
        )
    if not all(model.can_simulate for model in models):
        raise UnsupportedModel("Records cannot be drawn from both models, so the clip bound cannot be chosen: give bound=.")  # fmt: skip
    n = models[0].n_records
    index = models[0].some(_MOST, rng) if n > _MOST else None
    found = []
    for source in (0, 1):
        parts = []
        for _ in range(min(-(-_LEAST // n), _MOST_SETS)):
            drawn = models[source].draw(draws[source][rng.integers(len(draws[source]))], rng)
            data = dict(zip(names[source], drawn, strict=True))
            first, second = (
                log_predictive(
                    model.logp(theta, [data[v] for v in order], index) for theta in points
                )
                for model, order, points in zip(models, names, draws, strict=True)
            )
            with np.errstate(invalid="ignore"):
                parts.append(first - second)
        found.append(np.concatenate(parts))
    largest = max(np.abs(d[np.isfinite(d)]).max(initial=0.0) for d in found)
    first, second = (np.nan_to_num(d, nan=0.0, posinf=largest, neginf=-largest) for d in found)
    return first, second


def _observed_names(simulator: Simulator) -> list[str]:
    stand_in = simulator.covariates
    model = stand_in if isinstance(stand_in, pm.Model) else simulator.model
    return [rv.name for rv in model.observed_RVs]


def forecast(bound: float, differences: Sequence[np.ndarray], n_records: int) -> ClipForecast:
    """Clipping, bias and spread of a clip bound for `n_records` records, from simulated differences under each model."""
    cut = [d - np.clip(d, -bound, bound) for d in differences]
    bias = [float(n_records * c.mean()) for c in cut]
    return ClipForecast(
        bound=bound,
        clipped=max(float(np.mean(c != 0)) for c in cut),
        bias=(bias[0], bias[1]),
        spread=max(math.sqrt(n_records * np.mean(c**2)) for c in cut),
        misfit=MODEL_MISFIT_FRACTION * max(float(n_records * np.abs(c).mean()) for c in cut),
    )


def best_clipping(
    differences: Sequence[np.ndarray], n_records: int, noise_sd: float
) -> ClipForecast:
    """Forecast of the clip bound with the least sum of squares of noise, bias and spread."""
    sizes = np.abs(np.concatenate(list(differences)))
    if not sizes.max() > 0:
        raise ValueError(
            "Both released posteriors predict each simulated record equally well, so there is nothing to compare: are models and posteriors "
            "different?"
        )
    bounds = {float(b) for b in np.quantile(sizes, _QUANTILES) if b > 0}
    bounds.add(_MARGIN * float(sizes.max()))
    found = [forecast(bound, differences, n_records) for bound in sorted(bounds)]
    return min(found, key=lambda f: (noise_sd * f.bound) ** 2 + f.largest_bias**2 + f.spread**2)
