"""What the programs of all peers do in environments of their own, with the names of two files as arguments.

``run_peers.py`` makes the first one, the problem, and reads the second one, the answer.
"""

import sys
import time
import warnings

from types import SimpleNamespace

import numpy as np

from scipy import optimize, stats


def problem():
    """Numbers and arrays of the problem, by name."""
    warnings.simplefilter("ignore")
    with np.load(sys.argv[1]) as found:
        return SimpleNamespace(**{k: v if v.ndim else v.item() for k, v in found.items()})


def answer(posterior):
    """Save what `posterior` returns, draws of the coefficients, and the seconds it takes."""
    start = time.perf_counter()
    draws = posterior()
    np.savez_compressed(sys.argv[2], draws=draws, seconds=time.perf_counter() - start)


def dp_sgd_noise(steps, epsilon, delta):
    """Noise of DP-SGD on all records in each step, over the clipping threshold C, if a record is replaced.

    That moves a sum of clipped gradients by at most 2 C, and Gaussian mechanisms compose to one whose sensitivity is
    2 C sqrt(steps) (Dong, Roth and Su 2022, doi:10.1111/rssb.12454). Its delta is known exactly for each epsilon
    (Balle and Wang 2018, arXiv:1805.06530); integrals of the hockey-stick divergence agree.
    """

    def excess(mu):
        tail = np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
        return stats.norm.cdf(-epsilon / mu + mu / 2) - tail - delta

    return 2 * np.sqrt(steps) / optimize.brentq(excess, 1e-4, 100.0)
