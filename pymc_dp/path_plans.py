"""Plans for DPHMC: paths in a normal approximation, and the best of them on simulated records."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pymc_dp.blind_plans import MOST_CLIPPED, WITHIN, Terms, Weighed, rule_of
from pymc_dp.costs import LEAST_DRAWS, decision_cost, decisions
from pymc_dp.normal_chains import effective_part
from pymc_dp.pilot import Pilot
from pymc_dp.privacy.families import DecisionFamily
from pymc_dp.privacy.mechanisms import Gaussian
from pymc_dp.steps.base import DPStep

__all__ = ["PathCandidate", "Slope", "normal_paths", "plan_paths", "slopes"]

# What is tried out. Lengths of paths, where a quarter of an orbit is pi / 2.
_LENGTHS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
_STEPS = (1, 2, 3, 5, 8)
#: Noise of a gradient, whose own standard deviation is 1 in each direction.
_NOISE = (0.25, 0.5, 1.0, 2.0, 4.0)
_RULES = tuple((s, w) for s in (None, 1.4, 2.0, 2.5) for w in (1.0, 0.5))
#: Paths in the normal approximation; candidates of which chains are run there; those whose paths are
#: followed on simulated records, and paths of each.
_PATHS, _AS_CHAINS, _CLOSELY, _REAL = 256, 24, 6, 32
#: Least slope of a gradient, of 1 at a normal posterior: in curved ones it may be anything at one point.
_LEAST_GAIN = 0.1
#: Paths that end this many times farther away than those that were looked at are rejected.
_TOO_FAR = 3.0


@dataclass(frozen=True)
class PathCandidate(Weighed):
    """One choice of settings for :class:`~pymc_dp.DPHMC`, and what is expected of it.

    Parameters
    ----------
    shape : {"local", "pilot"}
        Inverse of the mass matrix: covariance of the normal approximation, or of a chain on simulated records.
    length : float
        Of a path, in time: `leapfrog_steps` times the step size.
    leapfrog_steps : int
    gradient_clip_bound : float
        Log-likelihood of a record per posterior standard deviation.
    gradient_noise_multiplier : float
    noise_scale : float or None
        Of the penalty rule; None for Barker's.
    laziness : float
    clip_bound : float
        Per posterior standard deviation.
    clipped : float
        Part of the records whose changes are clipped in decisions.
    acceptance : float
        Of all draws, lazy ones among them.
    draws : float
        Of each chain.
    effective_draws : float
        Of all chains together, in the slowest direction, roughly.
    bias : float
        Error of the posterior mean that comes from clipping in decisions, in posterior standard deviations.
        Clipping of gradients causes none.
    """

    COLUMNS: ClassVar[str] = (
        "length  steps  gradient: clip bound  noise  decision: clip bound  clipped  noise  lazy  draws  effective  bias  error"
    )

    shape: str
    length: float
    leapfrog_steps: int
    gradient_clip_bound: float
    gradient_noise_multiplier: float
    noise_scale: float | None
    laziness: float
    clip_bound: float
    clipped: float
    acceptance: float
    draws: float
    effective_draws: float
    bias: float

    @property
    def title(self) -> str:
        """What moves, and how far."""
        return f"paths of length {self.length:g} in {self.leapfrog_steps} step(s) ({self.shape} covariance), {self.acceptance:.0%} accepted"

    @property
    def row(self) -> str:
        """Line of a table with these `COLUMNS`."""
        return (
            f"{self.length:6.2g}{self.leapfrog_steps:7d}{self.gradient_clip_bound:22.3g}{self.gradient_noise_multiplier:7.3g}"
            f"{self.clip_bound:22.3g}{self.clipped:9.2%}{self.noise_scale or 0:7.2g}{self.laziness:6.3g}"
            f"{self.draws:7.0f}{self.effective_draws:11.0f}{self.bias:6.2f}{self.error:7.2f}"
        )


class Slope(NamedTuple):
    """Gradient of the log-posterior near its mode, ``offset - gains * w``, from clipped gradients of records.

    In coordinates in which the posterior's covariance is 1. `moments` are the sums of squares of the
    clipped gradients, and `unknown` those of the sizes of what is cut off, with the records' weights.
    Parameters are ``centre + root @ w``.
    """

    root: np.ndarray
    bound: float
    clipped: float
    gains: np.ndarray
    offset: np.ndarray
    moments: np.ndarray
    unknown: np.ndarray


def slopes(pilot: Pilot, covariance: np.ndarray) -> Iterator[Slope]:
    """Sums of gradients, for several clip bounds, by differences over two standard deviations."""
    root, d = np.linalg.cholesky(covariance), pilot.n_dim
    white = pilot.gradients(pilot.centre) @ root
    norms = np.linalg.norm(white, axis=1)
    bounds = sorted({float(b) for b in np.quantile(norms, WITHIN) if b > 0})
    derivatives = np.empty((len(bounds), d, d))
    for j, by in enumerate(root.T):
        there, back = (pilot.gradients(pilot.centre + sign * by) @ root for sign in (1, -1))
        prior = pilot.grad_log_prior(pilot.centre + by) - pilot.grad_log_prior(pilot.centre - by)
        for k, bound in enumerate(bounds):
            change = clipped_sum(there, bound) - clipped_sum(back, bound)
            derivatives[k, j] = (pilot.weight * change + prior @ root) / 2
    for bound, derivative in zip(bounds, derivatives, strict=True):
        gains, basis = np.linalg.eigh(-(derivative + derivative.T) / 2)
        kept = np.minimum(1, bound / np.maximum(norms, bound))[:, None] * white
        left, off = kept @ basis, (white - kept) @ basis
        yield Slope(
            root @ basis,
            bound,
            float((norms > bound).mean()),
            np.maximum(gains, _LEAST_GAIN),
            -pilot.weight * off.sum(axis=0),
            pilot.weight * (left**2).sum(axis=0),
            pilot.weight * np.abs(off).sum(axis=0),
        )


def clipped_sum(rows: np.ndarray, bound: float) -> np.ndarray:
    """Sum of rows that are clipped in their norm."""
    return np.minimum(1, bound / np.maximum(np.linalg.norm(rows, axis=1), bound)) @ rows


def plan_paths(
    step: type[DPStep], pilot: Pilot, terms: Terms
) -> tuple[dict[str, Any], list[PathCandidate]]:
    """Settings of :class:`DPHMC`, and candidates, the chosen first."""
    best: dict[tuple[float, ...], tuple[PathCandidate, Slope]] = {}
    for candidate, slope in _candidates(pilot, terms):
        key = candidate.length, candidate.leapfrog_steps, round(_noise_sd(candidate, terms), 9)
        if key not in best or candidate.error < best[key][0].error:
            best[key] = candidate, slope
    promising = sorted(best.values(), key=lambda found: found[0].error)[:_AS_CHAINS]
    chains = [(_as_chains(candidate, slope, terms), slope) for candidate, slope in promising]
    chains.sort(key=lambda found: found[0].error)
    looked_at = [_looked_at(*found, pilot, terms) for found in chains[:_CLOSELY]]
    looked_at = [found for found in looked_at if found[0].draws >= LEAST_DRAWS]
    if not looked_at:
        return {}, []
    looked_at.sort(key=lambda found: found[0].error)
    chosen, farthest = looked_at[0]
    settings = {
        "step_size": chosen.length / chosen.leapfrog_steps,
        "leapfrog_steps": chosen.leapfrog_steps,
        "gradient_clip_bound": chosen.gradient_clip_bound,
        "gradient_noise_multiplier": chosen.gradient_noise_multiplier,
        "clip_bound": chosen.clip_bound,
        "rule": rule_of(chosen.noise_scale, 1),
        "laziness": chosen.laziness,
        "mass_matrix": np.linalg.inv(pilot.shapes[chosen.shape]),
        "max_distance": _TOO_FAR * farthest,
        "temperature": terms.temperature,
    }
    return settings, [candidate for candidate, _ in looked_at]


def _noise_sd(candidate: PathCandidate, terms: Terms) -> float:
    """Of a gradient, in each direction."""
    size = terms.temperature * terms.sides * candidate.gradient_clip_bound
    return size * candidate.gradient_noise_multiplier


def _candidates(pilot: Pilot, terms: Terms) -> Iterator[tuple[PathCandidate, Slope]]:
    """What is expected of single paths in the normal approximation."""
    chains = terms.budget.chains
    normal = np.random.default_rng(0).standard_normal
    noise = normal((max(_STEPS) + 1, _PATHS, pilot.n_dim))
    rules = {(s, w): rule_of(s, w) for s, w in _RULES}
    for shape in pilot.shapes:
        blind = {length: pilot.moves(shape, length) for length in (0.3, 0.7, 1.4)}
        clipping = {
            length: [
                (bound * math.sqrt(pilot.n_dim) / length, clipped, bias)
                for bound, clipped, bias in map(moves.clipping, WITHIN)
                if bound > 0 and clipped <= MOST_CLIPPED
            ]
            for length, moves in blind.items()
        }
        start, momenta = normal((2, _PATHS, pilot.n_dim))
        narrowest = pilot.narrowest(shape)
        for slope in slopes(pilot, pilot.shapes[shape]):
            if slope.clipped > MOST_CLIPPED:
                continue
            for sd in _NOISE:
                z = sd / (terms.temperature * terms.sides * slope.bound)
                if not 0 < z <= 1e6:
                    continue
                gradient = terms.price(Gaussian(z))
                left = terms.left - chains * gradient
                for length, steps in product(_LENGTHS, _STEPS):
                    change, ratios = normal_paths(start, momenta, sd * noise, slope, length, steps)
                    typical = math.sqrt(np.mean((change**2).sum(axis=1)))
                    near = min(clipping, key=lambda other: abs(math.log(other / typical)))
                    for (noise_scale, laziness), rule in rules.items():
                        accepted = np.exp(rule.log_probabilities(ratios)[0])
                        slowest = narrowest * float((accepted @ change**2).min()) / _PATHS
                        fall = min(1.0, slowest / 2)
                        for bound, clipped, bias in clipping[near]:
                            sensitivity = terms.sides * terms.temperature * bound * typical
                            cost = steps * gradient + decision_cost(terms.budget, rule, sensitivity)
                            draws = decisions(left, cost, chains, terms.max_draws)
                            if draws >= LEAST_DRAWS and fall > 0:
                                found = PathCandidate(
                                    shape, length, steps, slope.bound, z, noise_scale, laziness, bound, clipped,
                                    float(accepted.mean()), draws, chains * draws * fall / (2 - fall), bias,
                                )  # fmt: skip
                                yield found, slope


def paths(
    w: np.ndarray,
    p: np.ndarray,
    noise: np.ndarray,
    force: Callable[[np.ndarray], np.ndarray],
    length: float,
    steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Changes, shape ``(paths, d)``, and losses of kinetic energy of paths from positions `w` with momenta `p`."""
    size, start, kinetic = length / steps, w, (p**2).sum(axis=1)
    gradient = force(w) + noise[0]
    for k in range(1, steps + 1):
        p = p + size / 2 * gradient
        w = w + size * p
        gradient = force(w) + noise[k]
        p = p + size / 2 * gradient
    return w - start, (kinetic - (p**2).sum(axis=1)) / 2


def normal_paths(
    w: np.ndarray, p: np.ndarray, noise: np.ndarray, slope: Slope, length: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Changes, and log-ratios in the normal approximation."""
    change, kinetic = paths(w, p, noise, lambda w: slope.offset - w * slope.gains, length, steps)
    return change, kinetic - ((w + change) ** 2 - w**2).sum(axis=1) / 2


def _as_chains(candidate: PathCandidate, slope: Slope, terms: Terms) -> PathCandidate:
    """What is expected of whole chains, whose gradients are reused with their noise."""
    d, steps = len(slope.gains), candidate.leapfrog_steps
    sd = _noise_sd(candidate, terms)
    normal = np.random.default_rng(2).standard_normal

    def propose(state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w, known = state[:, :d], state[:, d:]
        noise = np.concatenate([known[None], normal((steps, *w.shape))])
        change, ratios = normal_paths(
            w, normal(w.shape), sd * noise, slope, candidate.length, steps
        )
        return np.hstack([w + change, noise[-1]]), ratios

    rule = rule_of(candidate.noise_scale, candidate.laziness)
    guess = candidate.effective_draws / (candidate.draws * terms.budget.chains)
    part = effective_part(propose, rule, d, guess, 2 * d)
    return replace(candidate, effective_draws=candidate.effective_draws * min(1.0, part / guess))


def _looked_at(
    candidate: PathCandidate, slope: Slope, pilot: Pilot, terms: Terms
) -> tuple[PathCandidate, float]:
    """What comes of it on simulated records, and how far a path may be expected to lead."""
    d, chains, steps = pilot.n_dim, terms.budget.chains, candidate.leapfrog_steps
    sd = _noise_sd(candidate, terms)
    momenta = pilot.rng.standard_normal((_PATHS, d))
    noise = sd * pilot.rng.standard_normal((steps + 1, _PATHS, d))

    def force(positions: np.ndarray) -> np.ndarray:
        rows = []
        for theta in pilot.centre + positions @ slope.root.T:
            total = pilot.weight * clipped_sum(pilot.gradients(theta) @ slope.root, slope.bound)
            rows.append(total + pilot.grad_log_prior(theta) @ slope.root)
        return np.array(rows)

    start = np.linalg.solve(slope.root, (pilot.draws[:_REAL] - pilot.centre).T).T
    some = momenta[:_REAL], noise[:, :_REAL]
    with np.errstate(all="ignore"):
        change, kinetic = paths(start, *some, force, candidate.length, steps)
        sizes = np.linalg.norm(change, axis=1)
    if not np.isfinite(sizes + kinetic).all():  # steps that are far too long
        return replace(candidate, draws=0.0), math.nan
    ends = pilot.draws[:_REAL] + change @ slope.root.T
    moves = pilot.followed(candidate.shape, candidate.length, ends, sizes)
    clipped, bias = moves.clipped_to(candidate.clip_bound)
    rule = rule_of(candidate.noise_scale, candidate.laziness)

    def accepted(ratios: np.ndarray) -> float:
        return float(np.exp(rule.log_probabilities(ratios)[0]).mean())

    distances, expected = sizes, candidate.acceptance
    if not pilot.is_curved:
        # Paths of the normal approximation are many: those on records say by how much they differ.
        same, ratios = normal_paths(start, *some, slope, candidate.length, steps)
        expected = accepted(ratios)
        everywhere = pilot.rng.standard_normal((_PATHS, d))
        change, _ = normal_paths(everywhere, momenta, noise, slope, candidate.length, steps)
        farther = math.sqrt(np.mean(sizes**2) / np.mean((same**2).sum(axis=1)))
        distances = farther * np.linalg.norm(change, axis=1)
    less = min(1.0, accepted(moves.ratios + kinetic) / expected)
    decision = DecisionFamily(
        terms.sides * terms.temperature * candidate.clip_bound,
        rule_of(candidate.noise_scale, 1),
        None,
        candidate.laziness,
        tuple(distances.tolist()),
    )
    released = terms.price(Gaussian(candidate.gradient_noise_multiplier))
    cost = steps * released + terms.price(decision)
    draws = decisions(terms.left - chains * released, cost, chains, terms.max_draws)
    effective = candidate.effective_draws * less * draws / candidate.draws
    found = replace(
        candidate, clipped=clipped, acceptance=less * candidate.acceptance, draws=draws, effective_draws=effective,
        bias=bias,
    )  # fmt: skip
    return found, float(distances.max())
