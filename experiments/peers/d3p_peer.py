"""Differentially private variational inference with d3p 0.2.0: see README.md."""

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
