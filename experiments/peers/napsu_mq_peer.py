"""NAPSU-MQ (twinify 2.0.0): noise-aware synthetic data, and Rubin's rules.

Räisä, Jälkö, Kaski and Honkela 2023, Noise-aware statistical inference with differentially private synthetic data,
AISTATS, doi:10.48550/arXiv.2205.14485. Noisy counts of marginal tables are released, NUTS draws the parameters of a
maximum entropy distribution given them, each draw makes a synthetic data set, each set is analysed, and Rubin's rules
combine the results. All covariates must be categorical.

Environment (Python 3.11; twinify needs ``jax.config`` as a module and a numpyro before 0.12)::

    pip install jax==0.4.23 jaxlib==0.4.23 numpyro==0.11.0 "numpy<2" "pandas<2" "scipy<1.13" \
        "arviz<0.18" "matplotlib<3.9" "networkx<3" "disjoint-set<0.8" graphviz tqdm \
        fourier-accountant "jax-chacha-prng<2"
    pip install --no-deps d3p==0.2.0 twinify==2.0.0

Adjacency: substitution, as it is in the peer, so nothing is converted. It changes two counts by 1 in each of k tables,
so the sensitivity is sqrt(2 k) (`NapsuMQModel.fit`). The noise is that of the analytic Gaussian mechanism (Balle and
Wang 2018), which was checked by integrating the hockey-stick divergence (delta of 1e-6 to ten digits).

Choices of the user, made on the test problems, which costs the peer no budget:

* Queries: income with each covariate, and all covariates together. Their maximum entropy distribution is a logistic
  regression without interactions, with any distribution of the covariates, so there is no bias. All pairs were biased
  by up to 0.7 standard errors of the data, and one table of all cells has 2.5 to 6 times the noise variance in the
  counts that the coefficients need. `query_sets` must be given: without it twinify selects tables by MST with the whole
  budget, and then spends the whole budget again.
* The paper's settings for NUTS (4 chains of 2800) would take minutes, so there is one chain of 500 + 1000. The Laplace
  approximation of twinify did not converge (ConvergenceException).
* Analysis: the mode of the problem's posterior, which exists even if a cell is empty.

Two functions of twinify are replaced, without a change of the result: its log partition function takes minutes to
compile, so that of the table of all cells is used (equal to all digits), and synthetic data are drawn as counts of the
cells, so there are 500 sets (the paper has up to 100). Rubin's rules give no correlations, so draws, of the normal or t
distribution of each coefficient, are independent over coefficients.
"""

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
