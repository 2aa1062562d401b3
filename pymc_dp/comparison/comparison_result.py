"""The public results of a private comparison."""

from __future__ import annotations

import math

from dataclasses import dataclass, field

import numpy as np

from pymc_dp.arguments import as_float
from pymc_dp.comparison.difference_clipping import ClipForecast
from pymc_dp.display import Shown, Table
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw

#: Draws of the noise for the quantiles of an interval.
_N_DRAWS = 200_000
#: Standard errors from zero that distinguish the models.
_CLEAR = 2.0
_IN_SAMPLE = (
    "On records from which the posteriors were computed, each model looks better than on new ones by about one unit per parameter: "
    "prefer records that were held out."
)


@dataclass(frozen=True)
class PrivateComparison(Shown):
    r"""Noisy difference of two models in the log predictive density of private records: public.

    Parameters
    ----------
    names : tuple of str
        Of the two models.
    difference : float
        Sum over records of :math:`\operatorname{clip}(d_i, -b, b)` with noise. Above 0 if the first model predicts
        the records better.
    squares : float
        Sum of :math:`\operatorname{clip}(d_i, -b, b)^2` with noise.
    bound : float
        :math:`b`, in nats.
    noise : NoiseLaw
        Of the released vector: the pair (``difference / bound``, ``squares / (square_scale * bound**2)``), and the pairs of
        other models that were compared in the same release.
    square_scale : float
        Unit of `squares` in the released vector, in ``bound**2``.
    clipping : ClipForecast or None
        What clipping does to simulated records; None if `bound` was given, and how to simulate records was not.
    n_records : int or None
        Public number of privacy units; None where it is private (add/remove).
    report : PrivacyReport
        What it cost. The report of each posterior states what that cost.

    Examples
    --------
    >>> found = dp.private_compare({"t": first, "normal": second}, ...)  # doctest: +SKIP
    >>> found.difference, found.standard_error, found.is_clear  # doctest: +SKIP
    """

    names: tuple[str, str]
    difference: float
    squares: float
    bound: float
    noise: NoiseLaw
    square_scale: float
    clipping: ClipForecast | None
    n_records: int | None
    report: PrivacyReport = field(repr=False)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise on the difference."""
        return self.noise.sd * self.bound

    @property
    def sampling_sd(self) -> float:
        """Standard deviation of the difference over data sets of so many records, from the noisy squares.

        The root of ``squares - difference**2 / n_records``, or of ``squares`` if the number of records is private.
        It is at least the root of the standard deviation of the noise on the squares: a smaller value could not be
        distinguished from none.
        """
        least = self.noise_sd * self.square_scale * self.bound
        mean = 0.0 if self.n_records is None else self.difference**2 / self.n_records
        return math.sqrt(max(self.squares - mean, least))

    @property
    def standard_error(self) -> float:
        """Of the difference as an estimate for the population: root of the squares of noise and sampling."""
        return math.hypot(self.noise_sd, self.sampling_sd)

    @property
    def clipped(self) -> float | None:
        """Fraction of the records that are expected to be clipped, by simulation; None without one."""
        return None if self.clipping is None else self.clipping.clipped

    @property
    def is_clear(self) -> bool:
        """Whether the difference is more than two standard errors, and the clipping bias, from zero."""
        bias = 0.0 if self.clipping is None else self.clipping.largest_bias
        return abs(self.difference) > _CLEAR * self.standard_error + bias

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Interval for the difference on these records without privacy: for the sum of ``d_i``, not clipped.

        Parameters
        ----------
        level : float
            In (0, 1).

        Returns
        -------
        tuple of float
            It covers the noise, whose quantiles are simulated. Where records were simulated, it also covers what
            clipping cuts off: the mean under either model, and the spread over data sets. Not in it: misfit of both
            models in the tails, and the variation of the whole difference over data sets, see
            :attr:`standard_error`.
        """
        if not 0 < as_float(level) < 1:
            raise ValueError(f"level must lie in (0, 1), got {level!r}.")
        rng = np.random.default_rng(0)
        errors, bias = self.noise.draw(_N_DRAWS, rng)[:, 0] * self.bound, (0.0, 0.0)
        if self.clipping is not None:
            bias = self.clipping.bias
            errors += self.clipping.spread * rng.standard_normal(_N_DRAWS)
        half = float(np.quantile(np.abs(errors), level))
        return self.difference - half + min(0.0, *bias), self.difference + half + max(0.0, *bias)

    def __str__(self) -> str:
        """The result in words, and whether it distinguishes the models."""
        return f"{self.words}. {_IN_SAMPLE}"

    def _table(self) -> Table:
        return PrivateComparisons((self,))._table()

    @property
    def words(self) -> str:
        """The result in words, without what holds for all comparisons."""
        first, second = self.names
        figures = f"the difference is {self.difference:.3g}, its standard error {self.standard_error:.3g}, {self.noise_sd:.3g} of it noise"
        if self.is_clear:
            better, other = (first, second) if self.difference > 0 else (second, first)
            verdict = f"{better} predicts better than {other}: {figures}"
        else:
            is_noise = self.noise_sd > self.sampling_sd
            cause = "at this budget" if is_noise else "on these records"
            verdict = f"cannot tell apart {cause}: {figures}"
        clipped = "" if self.clipped is None else f"; {self.clipped:.2%} of the records are expected to be clipped"  # fmt: skip
        return f"{first} - {second}: {verdict}{clipped}"


@dataclass(frozen=True)
class PrivateComparisons(Shown):
    """Noisy differences of one model and several others, released together: public.

    ``found[name]`` is the comparison of the first model with the one of this name. The differences have independent
    noise if it is Gaussian, and uncorrelated noise otherwise: that of two of the others is
    ``found[a].difference - found[b].difference``, of opposite sign, with the root of the sum of both squared `noise_sd`.
    Each statement is about one pair: with many models some differences exceed two standard errors by chance.

    Parameters
    ----------
    comparisons : tuple of PrivateComparison
        In the order of the models.

    Examples
    --------
    >>> found["normal"].difference  # doctest: +SKIP
    """

    comparisons: tuple[PrivateComparison, ...]

    @property
    def report(self) -> PrivacyReport:
        """What all of them cost together."""
        return self.comparisons[0].report

    def __getitem__(self, name: str) -> PrivateComparison:
        """The comparison with this model."""
        found = {c.names[1]: c for c in self.comparisons}
        if name not in found:
            first = self.comparisons[0].names[0]
            raise KeyError(f"{name!r} is none of {', '.join(found)}, which {first} is compared with.")  # fmt: skip
        return found[name]

    def _table(self) -> Table:
        header = ("models", "difference", "standard error", "noise sd", "clear")
        rows = [
            (" - ".join(c.names), *(f"{x:.3g}" for x in (c.difference, c.standard_error, c.noise_sd)), "yes" if c.is_clear else "no")
            for c in self.comparisons
        ]  # fmt: skip
        return Table("Private comparison", rows, header, [_IN_SAMPLE])

    def __str__(self) -> str:
        """The results in words, a line for each."""
        return "\n".join([*(f"{c.words}." for c in self.comparisons), _IN_SAMPLE])
