"""NAPSU-MQ (twinify 2.0.0): noise-aware synthetic data, and Rubin's rules: see README.md."""

import functools
import itertools

import d3p.random
import jax
import numpy as np
import pandas as pd
import twinify.napsu_mq.maximum_entropy_inference as inference

from peer_program import answer, problem
from scipy import special
from twinify.napsu_mq import NapsuMQModel
from twinify.napsu_mq.markov_network import MarkovNetwork
from twinify.napsu_mq.rubins_rules import conf_int_distribution

N_WARMUP, N_SAMPLES, N_SETS, N_DRAWS = 500, 1000, 500, 2000


def posterior(z, y, levels, prior_sd, epsilon, delta, seed):
    """Draws of the coefficients, of the distributions that Rubin's rules give."""
    columns = [*z.T, y]
    names = [f"z{i}" for i in range(len(levels))] + ["y"]
    sizes = [*levels, 2]
    table = pd.DataFrame({
        name: pd.Categorical(column, categories=range(size))
        for name, column, size in zip(names, columns, sizes)
    })  # fmt: skip
    queries = [tuple(names[:-1])] + [(name, "y") for name in names[:-1]]
    model = NapsuMQModel(column_feature_set=[], use_laplace_approximation=False)
    result = model.fit(table, d3p.random.PRNGKey(seed), epsilon, delta, query_sets=queries)

    rng = np.random.default_rng(seed)
    cells, sets = synthetic_counts(result, len(y), N_SETS, rng)
    x = design(cells[:, :-1], levels)
    fits = [fit(x, cells[:, -1], counts, prior_sd) for counts in sets]
    estimates, variances = np.array(fits).transpose(1, 2, 0)
    return np.column_stack([
        conf_int_distribution(q, u, True, len(y), len(y)).rvs(N_DRAWS, random_state=rng)
        for q, u in zip(estimates, variances)
    ])  # fmt: skip


def synthetic_counts(result, n, n_sets, rng):
    """All cells, and their counts in synthetic data sets: the distribution of `result.generate`."""
    cells = all_cells(result.dataframe_domain)
    parameters = result.posterior_values[rng.choice(len(result.posterior_values), n_sets)]
    p = special.softmax(parameters @ result.queries.flatten()(cells).T, axis=1)
    return cells, rng.multinomial(n, p)


def all_cells(domain):
    return np.array(list(itertools.product(*domain.values())))


def design(z, levels):
    """Intercept, and an indicator of each category but the first."""
    indicators = [z[:, [i]] == np.arange(1, size) for i, size in enumerate(levels)]
    return np.hstack([np.ones((len(z), 1)), *indicators])


def fit(x, y, weights, prior_sd):
    """Mode of a logistic regression of weighted records, and variances there, by Newton steps."""

    def log_posterior(b):
        return weights @ (y * (x @ b) - np.logaddexp(0, x @ b)) - b @ b / (2 * prior_sd**2)

    b = np.zeros(x.shape[1])
    for _ in range(100):
        p = special.expit(x @ b)
        information = (x.T * (weights * p * (1 - p))) @ x
        covariance = np.linalg.inv(information + np.eye(len(b)) / prior_sd**2)
        step = covariance @ (x.T @ (weights * (y - p)) - b / prior_sd**2)
        while log_posterior(b + step) < log_posterior(b) - 1e-6:
            step = step / 2
        b = b + step
        if np.abs(step).max() < 1e-6:
            break
    return b, np.diag(covariance)


def adapt_twinify():
    """Make twinify compile in seconds, and run the chain that is set above."""

    def log_partition(self, lambdas):
        statistics = self.flat_queries(all_cells(self.domain)).astype(float)
        return jax.scipy.special.logsumexp(statistics @ lambdas)

    run = inference.run_numpyro_mcmc

    @functools.wraps(run)
    def shorter(*args, **kwargs):
        chain = {"num_warmup": N_WARMUP, "num_samples": N_SAMPLES, "num_chains": 1}
        return run(*args, **{**kwargs, **chain, "disable_progressbar": True})

    MarkovNetwork.lambda0 = log_partition
    inference.run_numpyro_mcmc = shorter


if __name__ == "__main__":
    p = problem()
    if p.family != "logistic" or np.any(p.levels == 0):
        raise ValueError("NAPSU-MQ needs a binary outcome and categorical covariates.")
    adapt_twinify()
    given = p.z.astype(int), p.y.astype(int), p.levels, p.prior_sd, p.epsilon, p.delta, p.seed
    answer(lambda: posterior(*given))
