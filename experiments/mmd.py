"""Maximum mean discrepancy: how far draws are from exact ones."""

import math

import numpy as np

from scipy.spatial.distance import cdist

_BLOCK = 4_000_000  # distances computed at a time, in about 100 MB


def mmd(draws, reference, *, bandwidth=None, random_seed=0):
    r"""Maximum mean discrepancy of draws from reference draws: 0 for the same law, at most about 0.9.

    With :math:`k(x, y) = \exp(-\|x - y\|^2 / (2 \sigma^2))`, the root of the unbiased estimate,

    .. math:: \sqrt{\Big|\frac{\sum_{i \ne j} k(x_i, x_j)}{n (n - 1)} + \frac{\sum_{i \ne j} k(y_i, y_j)}{m (m - 1)}
              - \frac{2}{n m} \sum_{i, j} k(x_i, y_j)\Big|}.

    For two samples of 1000 draws of the same law it is about 0.02. Parameters of larger scale have
    more weight. It is for evaluation, not for release: no budget pays for exact draws.

    Of draws of shape (n, d) or (chains, draws, d). The default bandwidth is the median distance within 500 pairs, one
    draw of each sample, taken with replacement (Räisä 2021, Differentially private Metropolis-Hastings algorithms,
    Section 5.3: 50 in the text, 500 in the experiments' code). See Gretton et al. (2012), A kernel two-sample test,
    https://jmlr.org/papers/v13/gretton12a.html.
    """
    x, y = (np.asarray(z, dtype=float) for z in (draws, reference))
    x, y = (z.reshape(-1, z.shape[-1]) for z in (x, y))
    if x.shape[1] != y.shape[1] or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(f"Draws must be finite, of one shape, got {x.shape} and {y.shape}.")
    if bandwidth is None:
        rng = np.random.default_rng(random_seed)
        pairs = x[rng.integers(len(x), size=500)] - y[rng.integers(len(y), size=500)]
        bandwidth = float(np.median(np.linalg.norm(pairs, axis=1)))
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}.")

    def total(a, b):
        rows = max(1, _BLOCK // len(b))
        distances = (cdist(a[i : i + rows], b) for i in range(0, len(a), rows))
        with np.errstate(over="ignore"):  # of distances beyond all bandwidths
            return math.fsum(np.exp(-0.5 * np.square(d / bandwidth)).sum() for d in distances)

    within = sum((total(z, z) - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y))
    return math.sqrt(abs(within - 2 * total(x, y) / (len(x) * len(y))))
