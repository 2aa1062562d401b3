"""Results of posterior predictive checks: what was released, and what the posterior predicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymc_dp.display import Shown, Table
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw


@dataclass(frozen=True, eq=False)
class CheckedStatistic(Shown):
    """One statistic of a check: public.

    Parameters
    ----------
    name : str
        Name of the statistic, by which ``ppc[name]`` finds it.
    labels : tuple of str
        Labels of its values.
    value : array of shape (size,)
        Released, with noise.
    replicates : array of shape (n, size)
        Drawn from its law under the model given the scores, with noise.
    noise_sd : array of shape (size,)
        Standard deviation of the noise.
    p_value : float
        Two-sided; of all values together if there are several.

    Examples
    --------
    >>> value, draws = np.array([13.0]), np.linspace(5.0, 15.0, 101)[:, None]
    >>> mean = dp.checks.CheckedStatistic("mean", ("",), value, draws, np.ones(1), 0.38)
    >>> mean.interval(0.8).ravel().tolist()
    [6.0, 14.0]
    """

    name: str
    labels: tuple[str, ...]
    value: np.ndarray
    replicates: np.ndarray = field(repr=False)
    noise_sd: np.ndarray
    p_value: float

    def interval(self, probability: float = 0.9) -> np.ndarray:
        """Central interval of the replicates for each value, shape ``(2, size)``."""
        tail = (1 - probability) / 2
        return np.quantile(self.replicates, [tail, 1 - tail], axis=0)


@dataclass(frozen=True, eq=False)
class PrivatePPC(Shown):
    """Result of :func:`~pymc_dp.private_ppc`: public, since a budget paid for it.

    Parameters
    ----------
    statistics : tuple of CheckedStatistic
        In the order in which they were asked for.
    noise : NoiseLaw
        Of the released vector.
    n_records : int
        Public number of privacy units.
    report : PrivacyReport
        What the check cost, in addition to the scores.

    Examples
    --------
    >>> ppc["variance"].p_value  # doctest: +SKIP
    """

    statistics: tuple[CheckedStatistic, ...]
    noise: NoiseLaw
    n_records: int
    report: PrivacyReport = field(repr=False)

    def __getitem__(self, name: str) -> CheckedStatistic:
        """The statistic of this name."""
        found = {s.name: s for s in self.statistics}
        if name not in found:
            raise KeyError(f"{name!r} is none of {', '.join(found)}.")
        return found[name]

    def to_dict(self) -> dict[str, Any]:
        """Values, 90 % intervals, noise and p-values as numbers, strings, lists and dicts."""
        return {
            s.name: {
                "labels": list(s.labels),
                "value": s.value.tolist(),
                "interval": s.interval().tolist(),
                "noise_sd": s.noise_sd.tolist(),
                "p_value": s.p_value,
            }
            for s in self.statistics
        }

    def __str__(self) -> str:
        """For each statistic the value that is least like its replicates."""
        return self._table().text()

    def _table(self) -> Table:
        title = f"Private posterior predictive check of {self.n_records} records ({self.noise.kind} noise)"
        rows = []
        for s in self.statistics:
            spread = s.replicates.std(axis=0)
            z = np.abs(s.value - s.replicates.mean(axis=0)) / np.where(spread > 0, spread, np.inf)
            k = int(z.argmax())
            low, high = s.interval()[:, k]
            at = s.labels[k] if len(s.labels) > 1 else ""
            figures = f"{s.value[k]:.4g}", f"{low:.4g} to {high:.4g}", f"{s.noise_sd[k]:.2g}"
            rows.append((s.name, at, *figures, f"{s.p_value:.2g}"))
        header = ("statistic", "at", "released", "90 % of replicates", "noise sd", "p")
        return Table(title, rows, header)
