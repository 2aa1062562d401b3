"""Composition of privacy loss distributions, by ``dp_accounting`` (the extra ``pld``).

Mechanisms are given by their privacy profiles, discretised from above by connecting the dots (Doroshenko et al.
2022, https://arxiv.org/abs/2207.04380). The library's own constructors are a second opinion in the tests. (Its
events define the noise multiplier differently in different accountants.)
"""

from __future__ import annotations

import math

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from pymc_dp.privacy.mechanisms.mechanism import Mechanism
from pymc_dp.privacy.mechanisms.subsampled import SampledGaussian

try:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    AVAILABLE = True
except ImportError:
    AVAILABLE = False

#: Below it, rounding in the fast Fourier transforms is no longer negligible.
LEAST_DELTA = 1e-10
# Probability of larger losses, per access, that is counted as infinite loss.
_TAIL = 1e-18
_MOST_ACCESSES = 10**7
_FEW_ACCESSES = 10
_MOST_STEPS = 2**17


def applies(counts: Mapping[Mechanism, float]) -> bool:
    """Whether the library is installed and all mechanisms have a privacy profile that falls to 0."""
    return (
        AVAILABLE and sum(counts.values()) <= _MOST_ACCESSES and all(_composable(m) for m in counts)
    )


@lru_cache(maxsize=1024)
def _composable(mechanism: Mechanism) -> bool:
    return mechanism.privacy_profile(np.zeros(1)) is not None and _reach(mechanism) < math.inf


def composed(counts: Mapping[Mechanism, float]) -> Any:
    """Pessimistic ``PrivacyLossDistribution`` of a composition; fractional counts are rounded up."""
    whole = {mechanism: math.ceil(count) for mechanism, count in counts.items()}
    # The repeated unit is composed once: all iterations of a run are the same.
    repeats = math.gcd(*whole.values())
    unit = tuple(sorted(((m, k // repeats) for m, k in whole.items()), key=repr))
    once = _unit(unit, _interval(unit, is_short=sum(whole.values()) <= _FEW_ACCESSES))
    return _repeat(once, repeats)


def _repeat(distribution: Any, count: int) -> Any:
    if count == 1:
        return distribution
    # The library truncates tails by Chernoff bounds at many orders, some of which overflow.
    with np.errstate(all="ignore"):
        return distribution.self_compose(count)


@lru_cache(maxsize=1024)
def _typical_loss(mechanism: Mechanism) -> float:
    return 2 * float(mechanism.privacy_profile(np.zeros(1))[0])  # type: ignore[index]


@lru_cache(maxsize=1024)
def _reach(mechanism: Mechanism) -> float:
    """Loss above which the privacy profile is negligible."""
    reach = 1e-6
    while mechanism.privacy_profile([reach])[0] > _TAIL:  # type: ignore[index]
        reach *= 1.25
        if reach > 1e6:
            return math.inf
    return reach


def _interval(unit: tuple[tuple[Mechanism, int], ...], is_short: bool) -> float:
    """Grid of the losses: at most 0.15 of a typical loss, which inflates their variance by about 0.3 %.

    A few accesses get a finer grid, as errors do not average out for losses with a largest value (l2 noise).
    Coarser, which is still safe, if a rare and large loss would make the grid too long.
    """
    accesses = sum(count for _, count in unit)
    squares = sum(count * _typical_loss(mechanism) ** 2 for mechanism, count in unit)
    step = (0.01 if is_short else 0.15) * min(1.0, math.sqrt(squares / accesses))
    least = max(_reach(mechanism) for mechanism, _ in unit) / _MOST_STEPS
    return 2.0 ** math.ceil(math.log2(max(step / 2, least)))


@lru_cache(maxsize=64)
def _unit(unit: tuple[tuple[Mechanism, int], ...], interval: float) -> Any:
    parts = [_repeat(_single(mechanism, interval), count) for mechanism, count in unit]
    # Pairwise, so that long distributions are composed least often.
    while len(parts) > 1:
        paired = [a.compose(b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0]


@lru_cache(maxsize=64)  # up to some megabytes each
def _single(mechanism: Mechanism, interval: float) -> Any:
    steps = math.ceil(_reach(mechanism) / interval)
    epsilons = np.arange(-steps, steps + 1) * interval
    directed = (
        mechanism.directed_profiles(epsilons) if isinstance(mechanism, SampledGaussian) else None
    )
    profiles = directed or (mechanism.privacy_profile(epsilons),)
    return privacy_loss_distribution.PrivacyLossDistribution(
        *(_masses(p, interval) for p in profiles)
    )


def _masses(profile: Any, interval: float) -> Any:
    # Rounding can make a profile not quite monotone; a larger delta is safe.
    deltas = np.clip(np.maximum.accumulate(profile[::-1])[::-1], 0, 1)
    steps = len(profile) // 2
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, deltas)
