"""Differentially private variational inference with d3p 0.2.0.

Method: DP-VI, Jälkö, Dikmen and Honkela 2017 (arXiv:1610.08749). Package: Prediger, Loppi, Kaski and Honkela 2022
(doi:10.2478/popets-2022-0052). The user writes a NumPyro model with a plate. In each step, `d3p.svi.DPSVI` clips the
gradient of each record, adds Gaussian noise to their mean, and updates a Gaussian guide.

Environment: Python 3.11. Versions are pinned since d3p 0.2.0 does not limit those of jax and numpyro::

    pip install "jax==0.4.30" "jaxlib==0.4.30" "numpyro==0.15.3" "numpy<2" "scipy==1.12.0" \
        "fourier-accountant==0.12.11" "jax-chacha-prng==1.4.3"
    pip install --no-deps "d3p==0.2.0"

Adjacency: substitution of one record, exactly, with noise by `dp_sgd_noise`. Relation S of fourier-accountant at q = 1,
and the PLD of dp-accounting at a sensitivity of 2, agree. `d3p.dputil.approximate_sigma` (relation S) returns the same
number, but needs 10 to 50 seconds, and stops early with a larger one by default. `DPSVI.get_epsilon` is for adding or
removing a record: not for us. Batches of a fixed size would save time only: at the same number of steps they need no
less noise, and relation S is no upper bound for them (Lebeda, Regehr, Kamath and Steinke 2024, arXiv:2405.20769).

A user chooses the clipping threshold, the number of steps, the batch size, the optimizer and its learning rate, the
guide, where it starts and how wide, and whether iterates are averaged. Here they are functions of n, d and epsilon,
tuned by hand on data sets of the comparison; this tuning is free for the peer. The guide starts wide, as in d3p's
example. We average the second half of the iterates, which d3p does not do; it is post-processing. The guide does not
know of the noise: at small epsilon its width depends on where it starts and on the learning rate more than on the data.

A real release needs a secret seed, which `d3p.random.PRNGKey()` draws; here it is the problem's.
"""

import d3p.random
import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from d3p.svi import DPSVI
from numpyro import distributions as dist
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_value
from peer_program import answer, dp_sgd_noise, problem


def hyperparameters(n, d, epsilon):
    """Choices of the user, from what is public."""
    steps = int(min(1000, 2e7 / n))
    rate = min(0.1, 0.035 * np.sqrt(max(epsilon, 1.0) * 1000 / steps))
    return {"clip": 0.7 * np.sqrt(d), "steps": steps, "rate": rate, "width": 1.0}


def posterior(x, y, family, prior_sd, outcome, epsilon, delta, seed, clip, steps, rate, width):
    """Draws of the coefficients from the guide."""
    n, d = x.shape

    def model(x, y):
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(d), prior_sd).to_event(1))
        if family in ("normal", "negative binomial"):
            scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("records", n, len(x)):
            eta = x @ theta
            if family == "logistic":
                numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)
            elif family == "poisson":
                numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y)
            elif family == "negative binomial":
                numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(eta), scale), obs=y)
            else:
                numpyro.sample("y", dist.Normal(eta, scale), obs=y)

    centre = np.mean(outcome) if family == "normal" else 0.0
    first = {"theta": jnp.zeros(d).at[0].set(centre), "scale": 1.0}
    guide = AutoDiagonalNormal(model, init_loc_fn=init_to_value(values=first), init_scale=width)
    dp_scale = dp_sgd_noise(steps, epsilon, delta)
    svi = DPSVI(model, guide, numpyro.optim.Adam(rate), Trace_ELBO(), clip, dp_scale)

    @jax.jit
    def fit(state):
        def step(state, _):
            state, _ = svi.update(state, x, y)
            return state, svi.get_params(state)

        _, path = jax.lax.scan(step, state, None, length=steps)
        return jax.tree_util.tree_map(lambda values: values[steps // 2 :].mean(0), path)

    params = fit(svi.init(d3p.random.PRNGKey(seed), x, y))
    draws = guide.sample_posterior(jax.random.PRNGKey(seed), params, sample_shape=(2000,))
    return np.asarray(draws["theta"])


if __name__ == "__main__":
    p = problem()
    x = jnp.asarray(p.x, dtype=jnp.float32)
    y = jnp.asarray(p.y, dtype=jnp.float32 if p.family == "normal" else jnp.int32)
    given = p.family, p.prior_sd, p.outcome, p.epsilon, p.delta, p.seed
    choices = hyperparameters(*x.shape, p.epsilon)
    answer(lambda: posterior(x, y, *given, **choices))
