"""Noisy sums of clipped scores, as public objects: what was released, what it cost, what is assumed."""

from __future__ import annotations

import json
import math
import os

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pymc_dp.display import Shown, Table, in_short
from pymc_dp.model.reductions import Reductions
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.queries.stand_in import StandIn

__all__ = ["PrivateScores", "ScoreHistogram", "ScoreMoments", "ScoreRelease"]


@dataclass(frozen=True, eq=False)
class ScoreHistogram(Shown):
    """Noisy counts of records by the norm of the unclipped score at a reference: for the fit check."""

    edges: np.ndarray
    counts: np.ndarray
    noise: str
    scale: float

    @property
    def law(self) -> NoiseLaw:
        """Law of the noise before it is rounded to integers."""
        return NoiseLaw(self.noise, self.scale, len(self.counts))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise on each count."""
        return self.law.sd


@dataclass(frozen=True, eq=False)
class ScoreRelease(Shown):
    r"""One sum of clipped scores, with noise.

    .. math:: \sum_i \operatorname{clip}_b(W' \nabla \ell_i(\theta_0)) + \text{noise}

    Parameters
    ----------
    theta : array of shape (n_dim,)
        The reference :math:`\theta_0`, on the unconstrained scale.
    directions : array of shape (n_dim, d)
        :math:`W`: directions in which derivatives are taken.
    bound : float
        :math:`b`, the largest Euclidean norm of a record's vector.
    noise : {"gaussian", "l2"}
        Law of the noise on the sum.
    scale : float
        Standard deviation of each coordinate of Gaussian noise, or the scale ``s`` of l2 noise, of density
        proportional to ``exp(-|x| / s)``.
    total : array of shape (d,)
        The noisy sum.
    histogram : ScoreHistogram, optional
        Of the norms of the same scores.
    unbiased : bool
        Whether factors of the clipping are the same for both outcomes of a record, which is binary: the mean of its
        vector given the covariates is zero at the reference.

    Examples
    --------
    >>> theta, total = np.zeros(1), np.array([35.0])
    >>> release = dp.scores.ScoreRelease(theta, np.eye(1), 1.0, "gaussian", 20.0, total)
    >>> release.noise_sd
    20.0
    """

    theta: np.ndarray
    directions: np.ndarray
    bound: float
    noise: str
    scale: float
    total: np.ndarray
    histogram: ScoreHistogram | None = None
    unbiased: bool = False

    @property
    def noise_sd(self) -> float:
        """Standard deviation of each coordinate of the noise."""
        return NoiseLaw(self.noise, self.scale, len(self.total)).sd


@dataclass(frozen=True, eq=False)
class ScoreMoments(Shown):
    """Noisy sum of the products of the coordinates of clipped scores: what the covariates are like.

    Parameters
    ----------
    theta : array of shape (n_dim,)
        Reference at which scores are taken, on the unconstrained scale.
    directions : array of shape (n_dim, d)
        Directions in which derivatives are taken.
    bound : float
        Largest Euclidean norm of a record's vector, to which it was clipped.
    noise : {"gaussian", "l2"}
        Law of the noise on the sum.
    scale : float
        Standard deviation of each coordinate of Gaussian noise, or the scale ``s`` of l2 noise.
    total : array of shape (d * (d + 1) / 2,)
        Upper triangle, row by row, with its entries off the diagonal multiplied by the root of 2: lengths are
        Frobenius norms.

    Examples
    --------
    >>> theta, total = np.zeros(1), np.array([80.0])
    >>> moments = dp.scores.ScoreMoments(theta, np.eye(1), 1.0, "gaussian", 9.0, total)
    >>> moments.noise_sd
    9.0
    """

    theta: np.ndarray
    directions: np.ndarray
    bound: float
    noise: str
    scale: float
    total: np.ndarray

    @property
    def noise_sd(self) -> float:
        """Standard deviation of each coordinate of the noise."""
        return NoiseLaw(self.noise, self.scale, len(self.total)).sd


@dataclass(frozen=True, eq=False)
class PrivateScores(Shown):
    """Noisy sums of clipped scores of one data set: public, since a budget paid for them.

    All that a posterior is computed from (:class:`~pymc_dp.DPScore`): whoever has it needs no data, may
    choose other priors, and draws as often as they like.

    Parameters
    ----------
    releases : tuple of ScoreRelease
        The noisy sums, in the order in which they were released.
    shapes : dict of str to tuple of int
        Value variables of the model (on the unconstrained scale), in their order, with their shapes.
    n_records : int
        Public number of privacy units.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.
    reports : tuple of PrivacyReport
        What the releases cost: one for each budget.
    moments : ScoreMoments, optional
        If the covariates are private: corrects those of the stand-in.
    stand_in : StandIn, optional
        If only ranges of the covariates were known: the stand-in that was released.
    fingerprint : str, optional
        Of the operations of the log-likelihood, without data, numbers and priors (:mod:`pymc_dp.model.fingerprint`): other
        likelihoods are refused. None, not checked, for scores that were made by hand.

    Examples
    --------
    >>> scores.save("scores.json")  # doctest: +SKIP
    >>> scores = dp.PrivateScores.load("scores.json")  # doctest: +SKIP
    """

    releases: tuple[ScoreRelease, ...]
    shapes: Mapping[str, tuple[int, ...]]
    n_records: int
    adjacency: str
    reports: tuple[PrivacyReport, ...]
    moments: ScoreMoments | None = None
    stand_in: StandIn | None = None
    fingerprint: str | None = None

    @property
    def n_dim(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def check_model(self, model: Reductions | PrivateScores) -> None:
        """Raise ValueError unless a model, or other scores, have these parameters in this order, and this likelihood."""
        shapes = model.shapes
        if list(shapes.items()) != list(self.shapes.items()):
            raise ValueError(
                f"These scores are derivatives with respect to {_listed(self.shapes)}, but the model has {_listed(shapes)} (variables on "
                "the unconstrained scale, in this order). Priors may differ, names, shapes and transforms may not."
            )
        if (
            None not in (self.fingerprint, model.fingerprint)
            and self.fingerprint != model.fingerprint
        ):
            raise ValueError(
                "These scores are derivatives of another log-likelihood: its operations, or the places where parameters enter, are others. "
                "Write the likelihood as it was when the scores were released (priors and data may differ), or release scores of this one."
            )

    def save(self, path: str | os.PathLike) -> None:
        """Write to a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike) -> PrivateScores:
        """Read what :meth:`save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} holds no scores: give a file that PrivateScores.save() has written.") from None  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Contents as numbers, strings, lists and dicts."""
        return {
            "releases": [_plain(r) for r in self.releases],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "n_records": self.n_records,
            "adjacency": self.adjacency,
            "reports": [json.loads(report.to_json()) for report in self.reports],
            "moments": None if self.moments is None else _plain(self.moments),
            "stand_in": None if self.stand_in is None else self.stand_in.to_dict(),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def of(cls, released: Any) -> PrivateScores:
        """Scores that a result of :func:`~pymc_dp.sample` was computed from, also if read back from a file.

        Raises
        ------
        ValueError
            If it carries none.
        """
        text = getattr(released, "attrs", {}).get("private_scores")
        if text is None:
            raise ValueError("There are no scores: this is not what sample() has returned.")
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any]) -> PrivateScores:
        """Inverse of :meth:`to_dict`."""
        releases = tuple(
            ScoreRelease(
                np.array(r["theta"]),
                np.array(r["directions"]),
                r["bound"],
                r["noise"],
                r["scale"],
                np.array(r["total"]),
                _histogram(r.get("histogram")),
                r.get("unbiased", False),
            )
            for r in contents["releases"]
        )
        shapes = {name: tuple(shape) for name, shape in contents["shapes"].items()}
        reports = tuple(PrivacyReport.from_json(json.dumps(r)) for r in contents["reports"])
        moments = contents.get("moments")
        if moments is not None:
            arrays = {name: np.array(moments[name]) for name in ("theta", "directions", "total")}
            moments = ScoreMoments(**moments | arrays)
        n_records, adjacency = contents["n_records"], contents["adjacency"]
        stand_in = contents.get("stand_in")
        stand_in = None if stand_in is None else StandIn.from_dict(stand_in)
        return cls(releases, shapes, n_records, adjacency, reports, moments, stand_in, contents["fingerprint"])  # fmt: skip

    def __add__(self, other: PrivateScores) -> PrivateScores:
        """Scores with the releases of both, from the same records."""
        self.check_model(other)
        mine, others = (self.n_records, self.adjacency), (other.n_records, other.adjacency)
        if mine != others:
            raise ValueError(
                f"These are scores of different data: {mine[0]} records ({mine[1]}) and {others[0]} ({others[1]})."
            )
        reports = {r.to_json(): r for r in (*self.reports, *other.reports)}
        releases = (*self.releases, *other.releases)
        moments = min(
            (s.moments for s in (self, other) if s.moments is not None),
            key=lambda m: m.noise_sd / m.bound**2,
            default=None,
        )
        stand_in = self.stand_in or other.stand_in
        return replace(
            self, releases=releases, reports=tuple(reports.values()), moments=moments, stand_in=stand_in
        )  # fmt: skip

    def __repr__(self) -> str:
        """What was released, in one line."""
        cost = " + ".join(f"({r.epsilon:.4g}, {r.delta:g})" for r in self.reports)
        return f"PrivateScores({len(self.releases)} noisy sum(s), n_records={self.n_records}, parameters={in_short([*self.shapes])}, cost={cost})"

    def _table(self) -> Table:
        return Table(self._head(), self.reports[-1]._rows() if self.reports else [])

    def __str__(self) -> str:
        """Each release, and the privacy report."""
        return "\n".join([self._head(), *map(str, self.reports)])

    def _head(self) -> str:
        lines = [
            f"Private scores: {len(self.releases)} noisy sum(s) of {self.n_records} records' clipped scores"
        ]
        for r in self.releases:
            lines.append(
                f"  dimension {len(r.total)}, clip bound {r.bound:.4g}, {r.noise} noise with sd {r.noise_sd:.4g} per coordinate "
                f"({r.noise_sd / math.sqrt(self.n_records):.2g} of a record's score times the root of the number of records)"
            )
            if (h := r.histogram) is not None:
                lines.append(
                    f"  norms of these scores: counts in {len(h.counts)} bins, {h.noise} noise with sd {h.noise_sd:.4g} per count"
                )
        if (m := self.moments) is not None:
            lines.append(
                f"  products of scores clipped to {m.bound:.4g}: {m.noise} noise with sd {m.noise_sd:.4g} per coordinate"
            )
        if self.stand_in is not None:
            lines.append(f"  {self.stand_in}".replace("\n", "\n  "))
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Fields and arrays as dicts and lists."""
    if isinstance(value, ScoreRelease | ScoreHistogram | ScoreMoments):
        return {name: _plain(field) for name, field in vars(value).items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _histogram(h: Mapping[str, Any] | None) -> ScoreHistogram | None:
    if h is None:
        return None
    return ScoreHistogram(np.array(h["edges"]), np.array(h["counts"]), h["noise"], h["scale"])


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in shapes.items())
