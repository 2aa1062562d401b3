"""Plan of a release of noisy scores: what it will cost and show, forecast on simulated records."""

from __future__ import annotations

import math

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pymc_dp.display import MOST_ROWS, Shown, Table
from pymc_dp.errors import LedgerError, explain
from pymc_dp.model.terms import ScoreNorms, ScoreProducts
from pymc_dp.planning.interest import by_parameter
from pymc_dp.planning.simulator import Simulator
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Accesses
from pymc_dp.progress import note, shown
from pymc_dp.queries.noisy_total import Release, noisy_total
from pymc_dp.queries.stand_in import release_stand_in
from pymc_dp.queries.stand_in_design import StandInDesign
from pymc_dp.scores.check_design import CheckDesign, TailMisfit, edges_of, unseen_in_words
from pymc_dp.scores.design import StartDesign
from pymc_dp.scores.releases import PrivateScores
from pymc_dp.scores.search import after_sums, released_sum
from pymc_dp.scores.second_moments import corrected
from pymc_dp.scores.simulated_scores import MomentDesign, ScoreDesign, SimulatedScores

#: Entries of a parameter that a printed plan shows.
_N_SHOWN = 6


@dataclass(frozen=True, eq=False)
class ScorePlan(Shown):
    """Releases of noisy scores that are planned, and the posterior that they are expected to give.

    Made by :func:`~pymc_dp.plan` on records drawn from the model: private data were not looked at. Run it with
    ``dp.sample(plan=plan)`` or :func:`~pymc_dp.private_scores`.

    Parameters
    ----------
    budget : PrivacyBudget
        Pays for the releases.
    simulator : Simulator
        The model, compiled.
    simulated : SimulatedScores
        Scores of simulated records at the position of the plan.
    design : StartDesign
        Accesses, and clip bound at that position.
    notes : tuple of str
        What the user should know.
    rng : numpy.random.Generator
        Of further simulations.
    moments : Release, optional
        That have been released.

    Examples
    --------
    >>> with pm.Model():
    ...     _ = pm.Poisson("y", pm.Gamma("rate", 2, 1), observed=np.full(300, 3))
    ...     plan = dp.plan(epsilon=1.0, delta=1e-6)
    >>> plan.release().n_records
    300
    """

    budget: PrivacyBudget
    simulator: Simulator = field(repr=False)
    simulated: SimulatedScores = field(repr=False)
    design: StartDesign = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)
    moments: Release | None = None

    def __post_init__(self) -> None:
        self.design.check_feasible(self.budget)

    @property
    def sd_ratios(self) -> Mapping[str, np.ndarray]:
        """Forecast of the posterior's standard deviation over the one without privacy, by parameter.

        It is the median over draws of the prior, or for parameters at a given guess (also where the prior is wide, with a
        note). To first order it is the same on the scale of the model as on the unconstrained one. Where a transform mixes
        entries (simplexes, ordered vectors), it is that of the unconstrained value, under its name. What is of interest comes
        first.
        """
        return self._ratios(self.design.design)

    def _ratios(self, design: ScoreDesign) -> Mapping[str, np.ndarray]:
        ratios = by_parameter(self.simulator.model, self.simulator.likelihood, design.sd_ratios)
        if (interest := self.simulator.interest) is None:
            return ratios
        likelihood, theta = self.simulator.likelihood, self.simulated.theta
        return {**interest.by_name(likelihood, theta, design.interest_ratios), **ratios}

    @property
    def unseen_shifts(self) -> Mapping[str, np.ndarray]:
        """Shift of each parameter's posterior mean that a misfit could cause without being seen, in its standard deviations.

        At most: by the largest share of the records that the fit check misses with a probability of 0.2
        (``design.check.unseen``), or by all without a check (:func:`~pymc_dp.scores.check_fit`).
        """
        unseen = self.design.check.unseen if self.design.check else 1.0
        shifts = unseen * self.design.design.largest_shifts
        return by_parameter(self.simulator.model, self.simulator.likelihood, shifts)

    def release(self, *, progressbar: bool | str = True) -> PrivateScores:
        """Claim the accesses from the budget, and make the releases.

        Parameters
        ----------
        progressbar : bool
            Show what is being done, and what part of the budget is being spent.

        Raises
        ------
        PrivacyBudgetExhausted
            If the budget does not pay for them: nothing is accessed.
        ValueError
            If ``pm.set_data`` has replaced data of the model since it was compiled: nothing is accessed.

        An exception after the first claim has the budget as attribute ``budget``, the sums that were released,
        if any, as attribute ``scores``, and a note on what is left.
        """
        self.simulator.check_data()
        self.simulator.likelihood.check_reachable(with_noise=True)
        with shown(progressbar):
            return self._release()

    def _release(self) -> PrivateScores:
        note("compiling the releases")
        likelihood, simulated = self.simulator.likelihood.rehearsal, self.simulated
        # Compiled before anything is paid for.
        theta, directions = simulated.theta, simulated.directions
        likelihood.total(simulated.term(1.0))
        if self.design.check is not None:
            likelihood.total(ScoreNorms(theta, directions, np.ones(1)))
        if self.design.moments is not None:
            likelihood.total(ScoreProducts(theta, directions, 1.0))
        plan, releases = self, list[Release]()
        try:
            if self.design.stand_in is not None:
                plan = plan._with_stand_in(self.design.stand_in)
            if self.design.moments is not None:
                plan = plan._with_moments(self.design.moments)
            return plan._release_sums(releases)
        except BaseException as error:
            plan._keep(releases, error)
            raise

    def _keep(self, releases: list[Release], error: BaseException) -> None:
        """Attach to an error what was released before it, and what is left: it is paid for."""
        try:
            scores = self._scores(releases) if releases else None
        except LedgerError:
            scores = None
        error.budget, error.scores = self.budget, scores  # type: ignore[attr-defined]
        explain(error, self.budget, scores)

    def _release_sums(self, releases: list[Release]) -> PrivateScores:
        """The start, the fit check, and the main sum, whose clip bound takes account of it; the list gets each sum at once."""
        simulated, adjacency = self.simulated, self.budget.adjacency
        for first, n_sums in self.design.start:
            self._spend("first scores", self.design.start)
            for _ in range(n_sums):
                releases.append(released_sum(self.simulator, simulated, first, adjacency))
                simulated = after_sums(self.simulator, releases, simulated, adjacency, self.rng)
            if n_sums > 1 and simulated.information_error and self.simulator.stand_in is None:
                releases.clear()  # far away, the error of the stand-in would shift the posterior
        simulated = simulated.weighted(self.design.design.weight)
        histogram, misfit = None, TailMisfit()
        if check := self.design.check:
            histogram = self._histogram(check, simulated)
            misfit = simulated.misfit(histogram, self.design.reference_error)
        self._spend("scores", ((self.design.main, 1),))
        releases.append(
            released_sum(self.simulator, simulated, self.design.main, adjacency, misfit)
        )
        return self._scores(releases, histogram)

    def _with_stand_in(self, design: StandInDesign) -> ScorePlan:
        """Release the law of the covariates; returns the plan with simulated rows of it.

        If records cannot be simulated with these, uniform rows are kept: the releases are paid for.
        """
        self._spend("stand-in", design.accesses)
        simulator, guess = self.simulator, self.simulated.theta
        assert simulator.ranges is not None
        places = simulator.places
        stand_in = release_stand_in(
            places, simulator.ranges, design, self.budget.adjacency, len(places)
        )
        try:
            simulator = simulator.standing_in(stand_in)
            simulated = SimulatedScores(simulator, guess, self.rng, self.simulated.draws)
        except (ValueError, np.linalg.LinAlgError):  # UnsupportedModel is a ValueError
            return self
        return replace(self, simulator=simulator, simulated=simulated)

    def _with_moments(self, design: MomentDesign) -> ScorePlan:
        """Release the moments; returns the plan with a stand-in that has them.

        If records cannot be simulated with its rows, all rows are kept: the moments are paid for.
        """
        self._spend("moments", ((design.mechanism, 1),))
        simulator, guess = self.simulator, self.simulated
        mechanism, adjacency = design.mechanism, self.budget.adjacency
        bound = guess.moment_design(mechanism, adjacency).bound
        term = ScoreProducts(guess.theta, guess.directions, bound)
        moments = noisy_total(simulator.likelihood, term, mechanism, adjacency)
        try:
            simulator = corrected(
                simulator, moments, simulator.n_records, guess.theta, guess.spread
            )
            simulated = SimulatedScores(simulator, guess.theta, self.rng, guess.draws)
        except (ValueError, np.linalg.LinAlgError):  # UnsupportedModel is a ValueError
            return self
        return replace(self, simulator=simulator, simulated=simulated, moments=moments)

    def _histogram(self, check: CheckDesign, simulated: SimulatedScores) -> Release:
        """Release the norms at the reference of the main sum."""
        self._spend("fit check", ((check.mechanism, 1),))
        edges = edges_of(simulated.norms, check.levels)
        term = ScoreNorms(simulated.theta, simulated.directions, edges)
        return noisy_total(self.simulator.likelihood, term, check.mechanism, self.budget.adjacency)

    def _spend(self, label: str, accesses: Accesses) -> None:
        likelihood = self.simulator.likelihood
        note(self._share(label, accesses))
        self.budget.spend(
            label, accesses, likelihood.containers, likelihood.n_records, plan=self.design.accesses
        )

    def _share(self, label: str, accesses: Accesses) -> str:
        """Fraction of the budget that accesses cost, in the budget's composition of successive claims, in words."""
        price = self.budget.terms.adaptive.price
        cost, total = (sum(k * price(m) for m, k in a) for a in (accesses, self.design.accesses))
        epsilon = self.budget.epsilon
        share = f"{cost / total:.0%} of " if epsilon < math.inf else ""
        return f"spending {share}epsilon = {epsilon:g} on {label}"

    def _scores(self, releases: list[Release], histogram: Release | None = None) -> PrivateScores:
        likelihood = self.simulator.likelihood
        report = replace(
            self.budget.report(), public_covariates=self.simulator.has_public_covariates
        )
        return PrivateScores(
            tuple(releases), likelihood.shapes, self.simulator.n_records, self.budget.adjacency.value, (report,),
            self.moments, self.simulator.stand_in, likelihood.fingerprint, histogram,
        )  # fmt: skip

    def __str__(self) -> str:
        """Releases and forecast."""
        lines = [*self._head(), *(f"  {name:<20} {text}" for name, text in self._rows())]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _table(self) -> Table:
        notes = [f"Note: {note}" for note in self.notes]
        return Table("\n".join(self._head()), self._rows(), notes=notes)

    def _head(self) -> list[str]:
        budget, design = self.budget, self.design
        lines = [
            f"Plan for epsilon = {budget.epsilon:g} at delta = {budget.delta:g}, {self.simulator.n_records} records",
            "made on records drawn from the model: private data were not looked at",
        ]
        if design.stand_in is not None:
            what = "combinations" if design.stand_in.is_joint else "values, and products of ranks"
            lines.append(f"covariates: {design.stand_in.counts.name}, counts of {what}")
        if design.moments is not None:
            lines.append(f"stand-in: {design.moments.mechanism.name}, products of scores")
        lines += [f"start:   {count} x {mechanism.name}" for mechanism, count in design.start]
        clipped = f"{design.design.clipped:.0%} of the records' scores clipped"
        lines.append(f"scores:  {design.main.name}, {clipped}")
        if design.check is not None:
            lines.append(
                f"fit check: {design.check.mechanism.name}, counts of score norms in {len(design.check.levels) + 1} bins"
            )
            lines.append(f"           {unseen_in_words(design.check.unseen, self.unseen_shifts)}")
        lines.append("expected posterior standard deviation, relative to the one without privacy:")
        return lines

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(name, _in_short(ratios)) for name, ratios in self.sd_ratios.items()]
        if self.design.even is not None:
            others = self._ratios(self.design.even).values()
            pairs = zip(rows, others, strict=True)
            rows = [
                (name, f"{text} (without interest=: {_in_short(r)})") for (name, text), r in pairs
            ]
        more = len(rows) - MOST_ROWS
        return rows if more <= 0 else [*rows[:MOST_ROWS], (f"... {more} more", "")]


def _in_short(ratios: np.ndarray) -> str:
    shown = ", ".join(f"{r:.2f}" for r in ratios[:_N_SHOWN])
    return shown + (", ..." if len(ratios) > _N_SHOWN else "")
