"""NA-DPVI: noise-aware differentially private variational inference; ``NA_DPVI`` is its folder: see README.md."""

import os
import sys
import types

import numpy as np

from peer_program import answer, dp_sgd_noise, problem

sys.path.insert(0, os.environ["NA_DPVI"])
sys.dont_write_bytecode = True
opacus = types.ModuleType("opacus.accountants.utils")
opacus.get_noise_multiplier = None
sys.modules |= dict.fromkeys(["opacus", "opacus.accountants", opacus.__name__], opacus)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import model  # noqa: E402
import noise_aware_dpsgd  # noqa: E402

from utils import DynamicAttributes  # noqa: E402

N_DRAWS = 2000


def posterior(x, y, levels, prior_sd, epsilon, delta, seed):
    """Draws of the coefficients: of the optimum given the trace, and of the approximation there."""
    n, d = x.shape
    back = centring(levels, d)

    def log_prior(theta):
        return -0.5 * jnp.sum((jnp.asarray(back) @ theta) ** 2) / prior_sd**2

    model.log_prior = log_prior
    noise_aware_dpsgd.print_debug_info = lambda *_: None
    args = DynamicAttributes(
        train_xs=jnp.asarray(x @ back), train_ys=jnp.asarray(y, float), theta_dimension=d,
        algorithm_prng_key=jax.random.PRNGKey(seed), **settings(n, d, epsilon, delta),
    )  # fmt: skip
    trace = noise_aware_dpsgd.perform_dpsgd(args, DynamicAttributes())
    trace = noise_aware_dpsgd.calculate_hessian_and_optimal_phi_priors(args, trace)
    trace = noise_aware_dpsgd.perform_laplace_approximation(args, trace)

    mode = np.asarray(trace.laplace_approximation_posterior_mode["optimal_phi"], float)
    covariance = np.asarray(trace.laplace_approximation_posterior_covariance, float)
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((2, N_DRAWS, 2 * d))
    phi = mode + noise[0] * np.sqrt(np.diag(covariance)[: 2 * d])
    theta = phi[:, :d] + np.logaddexp(0, phi[:, d:]) * noise[1, :, :d]
    return theta @ back.T


def settings(n, d, epsilon, delta):
    """Arguments of the authors' functions."""
    steps = int(np.clip(n / 8, 400, 3000))
    clipping = 0.85 * d**0.5
    noise = dp_sgd_noise(steps, epsilon, delta)
    scale = min(0.5 * n**0.5, 30.0)
    walk = np.sqrt(steps) * noise * clipping
    return dict(
        training_iterations=steps, target_epsilon=None, target_delta=None,
        custom_noise_scale=noise, clipping_threshold=clipping, sampling_rate=1.0,
        dpsgd_initial_mu_value=0.0,
        dpsgd_initial_pre_transformed_covariance_value=float(np.log(3 / n**0.5)),
        mu_gradient_scale=1.0, pre_transformed_covariance_gradient_scale=scale,
        dpsgd_mu_learning_rate=min(3.5 / (n * d**0.5), 2.0 / walk),
        dpsgd_pre_transformed_covariance_learning_rate=min(3 / steps, 0.3 * scale / walk),
        mu_learning_rate_v=None, pre_cov_learning_rate_v=None,
        is_covariance_diagonal_matrix=True, kl_divergence_mc_integration_samples_count=3,
        dpsgd_per_example_loss_function=model.per_example_kl_divergence_with_exact_entropy,
        trace_burn_in_percentage=0.5, inference_add_subsampling_noise=False,
        laplace_approximation_iterations=1500, laplace_approximation_learning_rate=0.02,
        laplace_approximation_trace_averaging=True,
        laplace_approximation_trace_averaging_burn_in=0.8,
    )  # fmt: skip


def centring(levels, d):
    """Matrix that takes the design to centred indicators, and coefficients of those back."""
    back, end = np.eye(d), d
    # From the end: the square of a continuous covariate, left of these, is not in `levels`.
    for size in reversed(levels):
        start = end - max(size - 1, 1)
        if size:
            back[0, start:end] = -1 / size
        end = start
    return back


if __name__ == "__main__":
    p = problem()
    if p.family != "logistic":
        raise ValueError("This NA-DPVI is for logistic regression.")
    given = p.x, p.y, p.levels, p.prior_sd, p.epsilon, p.delta, p.seed
    answer(lambda: posterior(*given))
