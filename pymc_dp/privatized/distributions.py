r"""Distributions of noisy releases, for inference from a privatized statistic.

The observed variable is the release, and its location is a statistic of latent confidential records, so the
posterior takes the noise into account, at no further privacy cost. For continuous noise use PyMC's
``pm.Laplace`` and ``pm.Normal``. Draws simulate a mechanism, from a public seed and in floating point, and
protect nobody: use OpenDP or :mod:`pymc_dp.privacy` for real data.
"""

from __future__ import annotations

import math

from typing import Any

import pytensor.tensor as pt

from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Discrete, SymbolicRandomVariable
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
from pymc.pytensorf import normalize_rng_param
from pytensor import config
from pytensor.tensor import TensorConstant, TensorVariable
from pytensor.tensor.random.basic import exponential, normal, uniform
from pytensor.tensor.random.utils import normalize_size_param
from pytensor.tensor.type import discrete_dtypes


class _ReleaseRV(SymbolicRandomVariable):
    """Draw of a release, composed of draws that PyTensor compiles on each backend."""

    extended_signature = "[rng],[size],(),()->[rng],()"
    draw: Any  # (rng, size, *params) -> next state of the generator, draws of shape size

    @classmethod
    def rv_op(cls, *params: Any, size: Any = None, rng: Any = None) -> TensorVariable:
        """Build the graph; PyMC does it again whenever the size changes."""
        rng, size = normalize_rng_param(rng), normalize_size_param(size)
        if rv_size_is_none(size):
            size = implicit_size_from_params(*params, ndims_params=cls.ndims_params)
        inputs = [rng, size, *params]
        return cls(inputs=inputs, outputs=list(cls.draw(rng, tuple(size), *params)))(*inputs)


def _independent(op: Any, rng: Any, size: tuple[Any, ...], *params: float) -> list[TensorVariable]:
    # Not by a call, which returns one output on PyTensor 2 and two on PyTensor 3.
    return op.make_node(rng, size, *params).outputs  # next state of the generator, draws


def _typed(x: Any, dtype: str) -> TensorVariable:
    """Variable of a given type: constants such as 2 and 2.0 would be int8 and float32, as would their exponentials."""
    x = pt.as_tensor(x)
    return pt.constant(x.data, dtype=dtype) if isinstance(x, TensorConstant) else x.astype(dtype)


def _widened(x: Any) -> TensorVariable:
    """Integers as int64, so that differences neither wrap around (unsigned) nor fail (booleans)."""
    x = pt.as_tensor(x)
    return _typed(x, "int64") if x.dtype in discrete_dtypes else x


def _nearest(x: TensorVariable) -> TensorVariable:
    return x if x.dtype == "int64" else pt.round(x).astype("int64")


def _is_whole(x: Any) -> TensorVariable:
    return pt.eq(x, pt.floor(x))


def _most_probable(rv: Any, size: Any, value: Any, *_: Any) -> TensorVariable:
    """Release without noise, the support point of each distribution here."""
    return pt.full(size, _nearest(value))


class _DiscreteLaplaceRV(_ReleaseRV):
    name = "discrete_laplace"
    _print_name = ("DiscreteLaplace", "\\operatorname{DiscreteLaplace}")

    @staticmethod
    def draw(rng: Any, size: Any, mu: Any, scale: Any) -> tuple[Any, TensorVariable]:
        # Difference of two geometric variables, P(G >= k) = a^k for k = 0, 1, ...
        next_rng, waits = _independent(exponential, rng, (2, *size), 1.0)
        geometric = pt.floor(scale * waits).astype("int64")
        return next_rng, _nearest(mu) + geometric[0] - geometric[1]


class DiscreteLaplace(Discrete):
    r"""Discrete Laplace distribution: a release of the geometric mechanism.

    The (two-sided) geometric mechanism adds noise of this distribution to a count [1]_, [2]_. A
    release :math:`k`, any integer, has probability

    .. math:: P(k \mid \mu, s) = \frac{1 - a}{1 + a} \, a^{|k - \mu|}, \qquad a = e^{-1/s}

    Clamped to ``0, ..., n`` (the truncated geometric mechanism), a release is
    ``pm.Censored("s_dp", DiscreteLaplace.dist(mu, scale), 0, n, observed=s_dp)``.

    Parameters
    ----------
    mu : tensor_like of int
        True value of the statistic, usually a function of latent records: integers, of any dtype. For real
        values the formula is the same (not normalised between the integers), and draws round them.
    scale : tensor_like of float
        Scale of the noise, positive: ``sensitivity / epsilon``, where one record changes the
        statistic by at most ``sensitivity``; ``1 / epsilon`` for a count.

    Raises
    ------
    ParameterValueError
        If ``scale <= 0`` where the log-probability is evaluated.

    References
    ----------
    .. [1] Ghosh, A., Roughgarden, T., Sundararajan, M. (2012). Universally utility-maximizing
       privacy mechanisms. SIAM Journal on Computing 41(6), 1673-1693. doi:10.1137/09076828X
    .. [2] Inusah, S., Kozubowski, T. J. (2006). A discrete analogue of the Laplace distribution.
       J. Statistical Planning and Inference 136(3), 1090-1102. doi:10.1016/j.jspi.2004.08.014

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:  # a count of 100 people, released with epsilon = 0.5
    ...     count = pm.Binomial("count", n=100, p=pm.Beta("p", 1, 1))
    ...     s_dp = dp.DiscreteLaplace("s_dp", count, scale=1 / 0.5, observed=27)
    """

    rv_type = _DiscreteLaplaceRV
    rv_op = _DiscreteLaplaceRV.rv_op
    support_point = staticmethod(_most_probable)

    @classmethod
    def dist(cls, mu: Any, scale: Any, **kwargs: Any) -> TensorVariable:
        """Create a variable outside of a model; takes the same parameters."""
        return super().dist([_widened(mu), _typed(scale, config.floatX)], **kwargs)

    @staticmethod
    def logp(value: Any, mu: Any, scale: Any) -> TensorVariable:
        """Log-probability; minus infinity if ``value`` is not an integer."""
        # log1mexp is accurate for log(1 - a) where a is near 1, log1p for log(1 + a) near 0.
        norm = pt.log1mexp(-1 / scale) - pt.log1p(pt.exp(-1 / scale))
        res = pt.switch(_is_whole(value), norm - abs(value - mu) / scale, -math.inf)
        return check_parameters(res, scale > 0, msg="scale > 0")

    @staticmethod
    def logcdf(value: Any, mu: Any, scale: Any) -> TensorVariable:
        """Logarithm of the probability of at most ``value``."""
        steps = pt.floor(value) - mu
        # P(K - mu <= -i) = P(K - mu >= i) = a**i / (1 + a), for i >= 0.
        log_tail = -pt.switch(steps < 0, -steps, steps + 1) / scale - pt.log1p(pt.exp(-1 / scale))
        res = pt.switch(steps < 0, log_tail, pt.log1mexp(log_tail))
        return check_parameters(res, scale > 0, msg="scale > 0")


class _DiscreteGaussianRV(_ReleaseRV):
    name = "discrete_gaussian"
    _print_name = ("DiscreteGaussian", "\\operatorname{DiscreteGaussian}")

    @staticmethod
    def draw(rng: Any, size: Any, mu: Any, sigma: Any) -> tuple[Any, TensorVariable]:
        # X is normal with variance sigma^2 + c; K, the integer nearest to it, is accepted with probability
        # exp(X^2 / (2 (sigma^2 + c)) - K^2 / (2 sigma^2) - 1 / (8 c)). Density times probability is constant
        # on the unit interval that rounds to K, so accepted K have the right law. The exponent is never
        # positive: |X| <= |K| + 1/2, and then it is largest, 0, at |K| = sigma^2 / (2 c). This c minimises
        # the number of trials, 2.4 or less on average for any sigma: 64 fail with probability below 1e-15.
        c = (1 + pt.sqrt(1 + 16 * sigma**2)) / 8
        rng, x = _independent(normal, rng, (64, *size), 0.0, 1.0)
        next_rng, waits = _independent(exponential, rng, (64, *size), 1.0)
        k = pt.round(x * pt.sqrt(sigma**2 + c))
        accepted = waits >= (k / sigma) ** 2 / 2 - x**2 / 2 + 1 / (8 * c)
        # The first accepted trial. argmax and indexing would take seconds longer to compile.
        order = accepted * pt.shape_padright(pt.arange(64, 0, -1), len(size))
        first = accepted & pt.eq(order, pt.max(order, axis=0))
        return next_rng, _nearest(mu) + pt.sum(first * k, axis=0).astype("int64")


class DiscreteGaussian(Discrete):
    r"""Discrete Gaussian distribution: a release with discrete Gaussian noise.

    A release :math:`k`, any integer, has probability [1]_

    .. math:: P(k \mid \mu, \sigma) = \frac{e^{-(k - \mu)^2 / (2 \sigma^2)}}
        {\sum_{j \in \mathbb{Z}} e^{-j^2 / (2 \sigma^2)}}

    Parameters
    ----------
    mu : tensor_like of int
        True value of the statistic, usually a function of latent records: integers, of any dtype.
    sigma : tensor_like of float
        Scale of the noise, positive, in units of the statistic; its standard deviation is slightly
        less. The release is zCDP with ``rho = sensitivity**2 / (2 * sigma**2)``.

    Raises
    ------
    ParameterValueError
        If ``sigma <= 0`` where the log-probability is evaluated.

    References
    ----------
    .. [1] Canonne, C. L., Kamath, G., Steinke, T. (2022). The discrete Gaussian for differential
       privacy. Journal of Privacy and Confidentiality 12(1). doi:10.29012/jpc.784

    Examples
    --------
    >>> with pm.Model() as model:  # a count of 100 people, released with rho = 1/8 (zCDP)
    ...     count = pm.Binomial("count", n=100, p=pm.Beta("p", 1, 1))
    ...     s_dp = dp.DiscreteGaussian("s_dp", count, sigma=2.0, observed=27)
    """

    rv_type = _DiscreteGaussianRV
    rv_op = _DiscreteGaussianRV.rv_op
    support_point = staticmethod(_most_probable)

    @classmethod
    def dist(cls, mu: Any, sigma: Any, **kwargs: Any) -> TensorVariable:
        """Create a variable outside of a model; takes the same parameters."""
        return super().dist([_widened(mu), _typed(sigma, config.floatX)], **kwargs)

    @staticmethod
    def logp(value: Any, mu: Any, sigma: Any) -> TensorVariable:
        """Log-probability; minus infinity if ``value`` is not an integer."""
        # Poisson summation: sum_j exp(-pi j^2 / t) = sqrt(t) sum_j exp(-pi j^2 t), t = 2 pi sigma^2. Three
        # terms of the faster side suffice. |log t| chooses it, which makes the derivative right even at t = 1.
        log_t = pt.log(2 * math.pi * sigma**2)
        terms = sum(pt.exp(-math.pi * j**2 * pt.exp(abs(log_t))) for j in (1, 2, 3))
        norm = (log_t + abs(log_t)) / 4 + pt.log1p(2 * terms)
        res = -(((value - mu) / sigma) ** 2) / 2
        res = pt.switch(_is_whole(value), res - norm, -math.inf)
        return check_parameters(res, sigma > 0, msg="sigma > 0")


class _RandomizedResponseRV(_ReleaseRV):
    name = "randomized_response"
    extended_signature = "[rng],[size],(),(),()->[rng],()"
    _print_name = ("RandomizedResponse", "\\operatorname{RandomizedResponse}")

    @staticmethod
    def draw(rng: Any, size: Any, value: Any, epsilon: Any, n_categories: Any) -> tuple[Any, Any]:
        next_rng, u = _independent(uniform, rng, (2, *size), 0.0, 1.0)
        keeps = u[0] * (1 + (n_categories - 1) * pt.exp(-epsilon)) < 1
        moves = pt.switch(keeps, 0, 1 + pt.floor(u[1] * (n_categories - 1)))
        return next_rng, (_nearest(value) + moves.astype("int64")) % n_categories


class RandomizedResponse(Discrete):
    r"""Randomized response: each record reports its category, or another one at random.

    An answer is the true category with the first probability, and each other one with the second: with two
    categories as in [1]_, with :math:`n` of them as in [2]_.

    .. math:: P(\text{answer} \mid \text{value}) = \frac{e^\epsilon}{e^\epsilon + n - 1}
        \quad \text{or} \quad \frac{1}{e^\epsilon + n - 1}

    Parameters
    ----------
    value : tensor_like of int
        True categories, usually latent: ``0, ..., n_categories - 1``.
    epsilon : tensor_like of float
        Local differential privacy of an answer, nonnegative: the log-ratio of the probabilities.
    n_categories : tensor_like of int
        Number of categories, at least 2. Default: 2, yes or no.

    Raises
    ------
    TypeError
        If ``n_categories`` is not of an integer type.
    ParameterValueError
        If a parameter is out of range where the log-probability is evaluated.

    References
    ----------
    .. [1] Warner, S. L. (1965). Randomized response: a survey technique for eliminating evasive
       answer bias. JASA 60(309), 63-69. doi:10.1080/01621459.1965.10480775
    .. [2] Kairouz, P., Oh, S., Viswanath, P. (2016). Extremal mechanisms for local differential
       privacy. Journal of Machine Learning Research 17(17), 1-51.

    Examples
    --------
    >>> with pm.Model() as model:  # answers of three people to a yes/no question
    ...     truth = pm.Bernoulli("truth", pm.Beta("p", 1, 1), shape=3)
    ...     answers = dp.RandomizedResponse("answers", truth, 1.0, observed=[0, 1, 1])
    """

    rv_type = _RandomizedResponseRV
    rv_op = _RandomizedResponseRV.rv_op
    support_point = staticmethod(_most_probable)

    @classmethod
    def dist(cls, value: Any, epsilon: Any, n_categories: Any = 2, **kwargs: Any) -> TensorVariable:
        """Create a variable outside of a model; takes the same parameters."""
        n_categories = pt.as_tensor(n_categories)
        if n_categories.dtype not in discrete_dtypes:
            raise TypeError(f"n_categories must be an integer; its type is {n_categories.dtype}.")
        epsilon = _typed(epsilon, config.floatX)
        return super().dist([_widened(value), epsilon, _widened(n_categories)], **kwargs)

    @staticmethod
    def logp(answer: Any, value: Any, epsilon: Any, n_categories: Any) -> TensorVariable:
        """Log-probability; minus infinity if ``answer`` is not a category."""
        log_truth = -pt.log1p((n_categories - 1) * pt.exp(-epsilon))  # e^epsilon would overflow
        res = log_truth - pt.switch(pt.eq(answer, value), 0.0, epsilon)
        res = pt.switch(_is_whole(answer) & (answer >= 0) & (answer < n_categories), res, -math.inf)
        valid = _is_whole(value) & (value >= 0) & (value < n_categories)
        msg = "epsilon >= 0, n_categories >= 2, value in 0, ..., n_categories - 1"
        return check_parameters(res, epsilon >= 0, n_categories >= 2, valid, msg=msg)
