"""Getting it right: parameters and data drawn from each other in turns, and still from their joint law.

Parameters are drawn from the prior and records given them. A sampler then moves the parameters given the records, new records are
drawn given the parameters, and so on (Geweke, 2004, https://doi.org/10.1198/016214504000001132). Sequences start in the joint law, so
that a right sampler ends there, and the ends of independent sequences are independent draws, with no autocorrelation to allow for.
Compared are parameters, scores and the log-likelihood: scores show at once whether parameters are as near to the records as they should
be. Unlike ranks this has no chain that runs backwards: reused gradients, which make the state more than the parameters, are tested too.
"""

from __future__ import annotations

import numpy as np
import pytest

from scipy import stats

from pymc_dp import DPHMC
from pymc_dp.steps import base
from tests.calibration.test_ranks import FREE, MODELS, SAMPLERS, Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
]

SEQUENCES, TURNS, MOVES = 300, 2, 10


def hmc_reusing_gradients(scales, **options):
    """Noise as large as the gradient, kept with the state."""
    return DPHMC(
        step_size=0.8, n_leapfrog=1, clip_bound=np.inf, gradient_clip_bound=0.3,
        gradient_noise_multiplier=2.0, mass_matrix=1 / np.square(scales), **FREE, **options,
    )  # fmt: skip


class ForgetsMomenta(DPHMC):
    """Fault: the kinetic energy is that of the start, as if momenta did not change on a path."""

    def _move_along(self, old, path):
        path[-1] = path[-1]._replace(momentum=path[0].momentum)
        return super()._move_along(old, path)


def forgets_momenta(scales, **options):
    return ForgetsMomenta(
        step_size=0.8, n_leapfrog=1, clip_bound=np.inf, gradient_clip_bound=0.3,
        gradient_noise_multiplier=2.0, mass_matrix=1 / np.square(scales), **FREE, **options,
    )  # fmt: skip


def quantities(case, theta):
    score = case.simulated.gradients(theta, case.data).sum(axis=0)
    return np.array([*theta, *score, case.logp(theta).sum()])


def start(case, rng):
    """Draw parameters from the prior, and records."""
    theta = case.prior(rng.standard_normal(case.simulated.n_dim))
    case.data = case.simulated.draw(theta, rng)
    return theta


def ends(case, sampler, seed, temperature=1.0):
    """Quantities where sequences end, before records are drawn once more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "RecordLikelihood", lambda *_, **__: case.likelihood)
        case.data = case.simulated.draw(np.zeros(case.simulated.n_dim), np.random.default_rng(0))
        step = sampler(case.scales, model=case.model, temperature=temperature)
    step.stop_tuning()
    found = []
    for k in range(SEQUENCES):
        rng = np.random.default_rng([seed, k])
        step.set_rng(rng)
        theta = start(case, rng)
        for turn in range(TURNS):
            if turn:
                case.data = case.simulated.draw(theta, rng)
            step._reset_chain()  # what it knows of the records is out of date
            point = case.likelihood.unravel(theta)
            for _ in range(MOVES):
                point, _ = step.step(point)
            theta = case.likelihood.ravel(point)
        found.append(quantities(case, theta))
    return np.array(found)


def p_values(case, sampler, seed, **options):
    """Of where sequences end, against many draws from the joint law."""
    rng = np.random.default_rng([seed, SEQUENCES])
    law = np.array([quantities(case, start(case, rng)) for _ in range(8 * SEQUENCES)])
    found = ends(case, sampler, seed, **options)
    return np.array([stats.ks_2samp(a, b).pvalue for a, b in zip(found.T, law.T, strict=True)])


@pytest.mark.parametrize("name", MODELS)
def test_joint_law_is_kept(name, seed=1):
    case = Case(name)
    for sampler in (*SAMPLERS[:4], hmc_reusing_gradients):
        found = p_values(case, sampler, seed)
        assert found.min() > 1e-4, (sampler.__name__, found)
    # Controls: another posterior; momenta that are not looked at, which matter where few parameters hang together.
    assert p_values(case, SAMPLERS[0], seed, temperature=0.1).min() < 1e-5
    if name == "location_and_scale":
        assert p_values(case, forgets_momenta, seed).min() < 1e-5
