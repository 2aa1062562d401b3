"""Noisy sums of clipped scores, as public objects: what was released, what it cost, what is assumed."""

from __future__ import annotations

import math
import os

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pymc_dp.codec import dumps, loads, published
from pymc_dp.display import Shown, Table, in_short
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.queries.noisy_total import Release
from pymc_dp.queries.stand_in import StandIn


@published
@dataclass(frozen=True, eq=False)
class PrivateScores(Shown):
    """Noisy sums of clipped scores of one data set: public, since a budget paid for them.

    All that a posterior is computed from (:class:`~pymc_dp.DPScore`): whoever has it needs no data, may
    choose other priors, and draws as often as they like.

    Parameters
    ----------
    releases : tuple of Release
        The noisy sums of :class:`~pymc_dp.model.ClippedScores`, in the order in which they were released.
    shapes : dict of str to tuple of int
        Value variables of the model (on the unconstrained scale), in their order, with their shapes.
    n_records : int
        Public number of privacy units.
    adjacency : {"substitute", "add_remove"}
        Which data sets count as neighbours.
    reports : tuple of PrivacyReport
        What the releases cost: one for each budget.
    moments : Release, optional
        Noisy sum of the products of scores (:class:`~pymc_dp.model.ScoreProducts`), if the covariates are private:
        corrects those of the stand-in.
    stand_in : StandIn, optional
        If only ranges of the covariates were known: the stand-in that was released.
    fingerprint : str, optional
        Of the operations of the log-likelihood, without data, numbers and priors (:mod:`pymc_dp.model.fingerprint`): other
        likelihoods are refused. None, not checked, for scores that were made by hand.
    histogram : Release, optional
        Noisy numbers of records by the norm of the score, not clipped (:class:`~pymc_dp.model.ScoreNorms`): for the
        fit check.

    Examples
    --------
    >>> scores.save("scores.json")  # doctest: +SKIP
    >>> scores = dp.PrivateScores.load("scores.json")  # doctest: +SKIP
    """

    releases: tuple[Release, ...]
    shapes: Mapping[str, tuple[int, ...]]
    n_records: int
    adjacency: str
    reports: tuple[PrivacyReport, ...]
    moments: Release | None = None
    stand_in: StandIn | None = None
    fingerprint: str | None = None
    histogram: Release | None = None

    @property
    def n_dim(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def check_model(self, model: Likelihood | PrivateScores) -> None:
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
        Path(path).write_text(dumps(self, indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike) -> PrivateScores:
        """Read what :meth:`save` wrote."""
        try:
            found = loads(Path(path).read_text())
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, PrivateScores):
            raise ValueError(f"{path} holds no scores: give a file that PrivateScores.save() has written.")  # fmt: skip
        return found

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
        return loads(text)

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
            key=lambda m: m.noise_sd / m.term.bound**2,
            default=None,
        )
        return replace(
            self, releases=releases, reports=tuple(reports.values()), moments=moments,
            histogram=other.histogram or self.histogram, stand_in=self.stand_in or other.stand_in,
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
        shown = self.releases if len(self.releases) <= 2 else self.releases[-1:]
        if first := self.releases[: -len(shown)]:
            lines.append(f"  {len(first)} first sums of a search, {first[0].noise.kind} noise")
        for r in shown:
            lines.append(
                f"  dimension {len(r.total)}, clip bound {r.term.bound:.4g}, {r.noise.kind} noise with sd {r.noise_sd:.4g} per coordinate "
                f"({r.noise_sd / math.sqrt(self.n_records):.2g} of a record's score times the root of the number of records)"
            )
        if (h := self.histogram) is not None:
            lines.append(
                f"  norms of scores: counts in {len(h.total)} bins, {h.noise.kind} noise with sd {h.noise_sd:.4g} per count"
            )
        if (m := self.moments) is not None:
            lines.append(
                f"  products of scores clipped to {m.term.bound:.4g}: {m.noise.kind} noise with sd {m.noise_sd:.4g} per coordinate"
            )
        if self.stand_in is not None:
            lines.append(f"  {self.stand_in}".replace("\n", "\n  "))
        return "\n".join(lines)


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name}{list(shape) if shape else ''}" for name, shape in shapes.items())
