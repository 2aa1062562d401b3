"""Whole numbers and exponent of the terms of a model, as tests ask for them."""

from pymc_dp.model import ClippedScores, ScoreNorms, ScoreProducts
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries import Release


def clipped_grad_steps(likelihood, theta, bound, index=None, **options):
    """Sum of clipped scores."""
    term = ClippedScores(theta, bound, **options)
    return likelihood.total(term, index), term.exponent


def norm_counts(likelihood, *arguments):
    """Numbers of records by the norm of their scores."""
    return likelihood.total(ScoreNorms(*arguments))


def product_steps(likelihood, *arguments):
    """Sum of products of clipped scores."""
    term = ScoreProducts(*arguments)
    return likelihood.total(term), term.exponent


def score_release(theta, directions, bound, kind, scale, total, **options):
    """A released sum of clipped scores."""
    term = ClippedScores(theta, bound, directions, **options)
    return Release(term, NoiseLaw(kind, scale, len(total)), total)


def score_moments(theta, directions, bound, kind, scale, total):
    """A released sum of products of clipped scores."""
    return Release(
        ScoreProducts(theta, directions, bound), NoiseLaw(kind, scale, len(total)), total
    )
