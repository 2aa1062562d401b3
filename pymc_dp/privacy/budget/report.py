"""The privacy statement that travels with a released posterior."""

from __future__ import annotations

import math

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pymc_dp.arguments import as_integer
from pymc_dp.codec import dumps, loads, published
from pymc_dp.display import Shown, Table
from pymc_dp.ledger_file import budgets_without_file
from pymc_dp.privacy.accounting.adaptive import AdaptiveComposition
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.accounting.groups import fixed_plan, successive_claims
from pymc_dp.privacy.budget.claims import Claims, StepReport, listed
from pymc_dp.privacy.budget.coverage import Coverage, uncovered
from pymc_dp.privacy.mechanisms.mechanism import Adjacency

_NEIGHBOURS = {
    "substitute": "data sets that differ in the value of one record (substitute one record)",
    "add_remove": "data sets of which one has one record more (add or remove one record)",
}
_OUTCOMES = "; outcomes are protected, the covariates are NOT: they are public, and enter plans and posteriors unprotected"
_ADDED = (
    "this was added after release, and may show the data: {}. release() of this object drops it"
)
_KEPT = "kept at the user's wish, outside the guarantee: {}"
_INFINITE = "epsilon is infinite; the figures below guarantee nothing"
_REPRODUCIBLE = "the randomness is reproducible, hence known to an attacker; the figures below guarantee nothing"
_GUARANTEE = "({0:.4g}, {1:g})-differential privacy, of a budget of ({2:g}, {1:g})"
_PURE = "pure {0:.4g}-differential privacy (delta = 0), of a budget of {2:g}"
_NOT_A_SUM = "the epsilons of the parts are of each alone; the accountant composes them to less than their sum, {:.4g}"
_ATTACK = "true positive rate at most {0[1]:.2%} at false positive rate {0[0]}"
_FREE = "free, in any number of chains: computed from what was released"
_SECRET = "secret, from the operating system"
_KNOWN = "REPRODUCIBLE from the seed: the guarantee is broken"
_TEMPORARY = "temporary: spent privacy is forgotten when the program ends"
_FORGOTTEN = "This program opened {} budget(s) without a ledger file; if they were spent on the same data, their epsilons add up."
_ACCOUNT = "all budgets on this ledger together: epsilon = {:.4g}"
_GROUP = "{!r}, one of several disjoint groups of records: releases about other groups do not affect this group's privacy"

_PUBLIC_NUMBER = "The number of records is public (under substitution)."
_UNITS = "Each privacy unit's rows appear in one record only, and no record's contribution depends on another record."
_ASSUMPTIONS = (
    "Only the chain's states, accept/reject outcomes and proposal distances are released, by release() or sample().",
    "Priors, clip bounds, proposals, noise scales and initial points were not chosen by looking at the data.",
    _UNITS,
)
#: The same where a few noisy sums are released, and no chain accesses the data.
_ASSUMPTIONS_OF_SUMS = (
    "Only the noisy sums are released: posterior draws, chains and diagnostics are computed from these and the public model.",
    "The model, the guess, stand-in records and settings were not chosen by looking at the data.",
    _UNITS,
)
_OWN_GROUP = "The group of a record depends on this record only"
#: A larger epsilon gives practically no protection.
_WEAK_EPSILON = 20.0


@published
@dataclass(frozen=True)
class PrivacyReport(Shown):
    """Privacy statement of a result: what was spent, on what, and what is assumed.

    Text by ``str()``, :meth:`to_markdown`, HTML in notebooks, :meth:`to_dict`, :meth:`to_json`.

    Parameters
    ----------
    protected : bool
        Whether the result may be published under this guarantee. False if epsilon is infinite, if the randomness is known,
        or if the report does not cover some part of the result.
    epsilon_budget, delta : float
        Terms of the budget.
    epsilon : float
        Spent, at ``delta``, by everything claimed; it holds for any rule of stopping.
    gaussian_mu, zcdp_rho : float or None
        Of all that the budget pays for, in these currencies; None if its bound is in another one.
    attack_power : dict of str to float
        Largest true positive rate of any attack at the false positive rates 0.1 % and 1 %, on all that the
        budget pays for.
    adjacency : str
        Which data sets count as neighbours: ``"substitute"`` or ``"add_remove"``.
    accountant, proved_by : str
        The accountant of the budget, and the one that proves epsilon.
    chains : int
        Chains that share the budget; 0 if no chain accesses the data, and draws cost nothing.
    n_records : int or None
        Number of privacy units, if it is public.
    secret_randomness : bool
        Whether noise and decisions took the operating system's bits. False with ``reproducible=True``.
    ledger : str or None
        Name of the ledger's file; None if it is temporary.
    steps : tuple of StepReport
        Claims of each step.
    one_off_accesses : dict of str to tuple of str
        Accesses that belong to no chain, those that were planned but not made included.
    draws : tuple of int
        Draws of each chain so far, as counted by the callback.
    assumptions : tuple of str
        What the guarantee rests on, in words.
    public, kept : tuple of str
        Arrays that were declared public; variables that were kept although they show data.
    covers : dict or None
        Groups of the released result, with names of variables and coordinates and lengths of axes; None before ``release``.
    uncovered : tuple of str
        Other contents of the result that :meth:`of` has found.
    account_epsilon : float or None
        Of all budgets on the same ledger together, if there are several.
    budgets_without_ledger : int
        Number of budgets without a ledger file that had accessed data in this program, whatever their data.
    claimed : str or None
        All that was claimed, as the ledger writes it, for :meth:`for_group`.
    order : float or None
        Rényi order at which successive claims compose; infinite for pure DP, None for Gaussian DP.
    at_once : bool
        Whether all was claimed at once, as one plan.
    public_covariates : bool
        Whether covariates of the model are public (``covariates="public"``), so that only outcomes are protected.
    group : str or None
        Label of the group of records that the budget is for; None if it is for all records.

    Examples
    --------
    >>> report = dp.PrivacyBudget(epsilon=1.0, delta=1e-6, chains=4).report()
    >>> report.epsilon, report.epsilon_budget  # spent, and allowed
    (0.0, 1.0)
    """

    protected: bool
    epsilon_budget: float
    epsilon: float
    delta: float
    gaussian_mu: float | None
    zcdp_rho: float | None
    attack_power: dict[str, float]
    adjacency: str
    accountant: str
    proved_by: str
    chains: int
    n_records: int | None
    secret_randomness: bool
    ledger: str | None
    steps: tuple[StepReport, ...]
    one_off_accesses: dict[str, tuple[str, ...]]
    draws: tuple[int, ...]
    assumptions: tuple[str, ...]
    public: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    covers: Coverage | None = None
    uncovered: tuple[str, ...] = ()
    account_epsilon: float | None = None
    budgets_without_ledger: int = 0
    claimed: str | None = None
    order: float | None = None
    at_once: bool = False
    public_covariates: bool = False
    group: str | None = None

    def for_group(self, size: int) -> tuple[float, float]:
        """Guarantee for several records that change at once, as those of one person or household.

        Of everything that was claimed, as `epsilon` is, which it equals for one record. Exact where the
        sensitivities of all accesses can be multiplied, else a bound: for batches, and for chains that claimed a share of a
        filter (:mod:`pymc_dp.privacy.accounting.groups`).

        Parameters
        ----------
        size : int
            Largest number of records that may be replaced (``"substitute"``), or added or removed (``"add_remove"``).

        Returns
        -------
        epsilon, delta : float
            At the delta of the report. Epsilon is infinite if no bound is known.

        Raises
        ------
        ValueError
            If the size is below 1, or if the report is of several budgets together and does not hold their accesses.

        Examples
        --------
        >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=0, chains=1)
        >>> budget.spend("means", [(dp.privacy.L2Laplace(0.5, n_dim=3), 1)])
        >>> budget.report().for_group(4)
        (2.0, 0.0)
        """
        size = as_integer("size", size, 1)
        if self.claimed is None:
            raise ValueError(
                "This report does not hold its accesses, as it is of several budgets together: add up for_group of the report of each, such as "
                "scores.reports."
            )
        cost = Cost.of(loads(self.claimed))
        if size == 1 or cost.free or self.epsilon_budget == math.inf:
            return self.epsilon, self.delta
        if self.at_once:
            return fixed_plan(cost, size, self.delta, self.accountant), self.delta
        composed = AdaptiveComposition(self.epsilon_budget, self.delta, self.order)
        return successive_claims(cost, size, composed), self.delta

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, for machines."""
        return asdict(self)

    def to_json(self) -> str:
        """JSON text; infinities become the string ``"inf"``."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> PrivacyReport:
        """Read what :meth:`to_json` wrote."""
        return loads(text)

    @classmethod
    def of(cls, released: Any) -> PrivacyReport:
        """Report of what ``release`` or ``sample`` has returned, also if read back from a file.

        Later additions (as by ``extend_inferencedata=True``, or by ``pm.compute_log_likelihood``) are listed in
        `uncovered`, and the report is then not `protected`. ``release(released)`` drops them. Names
        and lengths are compared, values are not.

        Parameters
        ----------
        released : arviz.InferenceData, xarray.DataTree or xarray.Dataset
            The released posterior, or one of its groups.

        Raises
        ------
        ValueError
            If it carries no report.
        """
        for holder in (released, getattr(released, "posterior", None)):
            text = getattr(holder, "attrs", {}).get("privacy_report")
            if text is not None:
                report = cls.from_json(text)
                found = uncovered(released, report.covers)
                attack = dict.fromkeys(report.attack_power, 1.0) if found else report.attack_power
                protected = report.protected and not found
                return replace(report, uncovered=found, protected=protected, attack_power=attack)
        raise ValueError(
            "There is no privacy report: this is not what release() or sample() has returned."
        )

    def _rows(self) -> list[tuple[str, str]]:
        terms = (self.epsilon, self.delta, self.epsilon_budget)
        counts = Cost.of(loads(self.claimed)).counts if self.claimed else {}
        pure = [k * m.pure_epsilon for m, k in counts.items() if m.pure_epsilon < math.inf]
        is_more = sum(pure) > self.epsilon * (1 + 1e-9)
        is_best = self.accountant == "best" != self.proved_by
        others, is_infinite = self.budgets_without_ledger, self.epsilon_budget == math.inf
        is_known = not is_infinite and not self.secret_randomness
        facts: list[tuple[str, str, Any]] = [
            ("NOT PROTECTED", _ADDED, "; ".join(self.uncovered) or None),
            ("NOT PROTECTED", _KEPT, ", ".join(self.kept) or None),
            ("NOT PROTECTED", _INFINITE, "" if is_infinite else None),
            ("NOT PROTECTED", _REPRODUCIBLE, "" if is_known else None),
            ("guarantee", "{}", (_GUARANTEE if self.delta else _PURE).format(*terms)),
            ("neighbours", _NEIGHBOURS[self.adjacency] + _OUTCOMES * self.public_covariates, ""),
            ("group", _GROUP, self.group),
            ("records", "{}", self.n_records),
            ("WEAK DELTA", "{}", weak_delta(self.delta, self.n_records)),
            ("WEAK EPSILON", "{}", weak_epsilon(self.epsilon_budget)),
            ("budgets", _FORGOTTEN, others if others > (self.ledger is None) else None),
            ("account", _ACCOUNT, self.account_epsilon),
            ("chains", "shared over {}", self.chains) if self.chains else ("draws", _FREE, ""),
            ("draws", "{}", " + ".join(map(str, self.draws)) or None),
            *(
                (label, "{}", each)
                for label, all_ in self.one_off_accesses.items()
                for each in all_
            ),
            *((label, "{}", text) for step in self.steps for label, text in step.rows()),
            ("parts", _NOT_A_SUM, sum(pure) if is_more else None),
            ("Gaussian DP", "mu <= {:.4g}", self.gaussian_mu if self.epsilon > 0 else None),
            ("zCDP", "rho <= {:.4g}", self.zcdp_rho if self.epsilon > 0 else None),
            *(("worst attack", _ATTACK, each) for each in self.attack_power.items()),
            ("accountant", "{}", self.accountant + f", by {self.proved_by}" * is_best),
            ("randomness", "{}", _SECRET if self.secret_randomness else _KNOWN),
            ("ledger", "{}", self.ledger or _TEMPORARY),
            *(("declared public", "{}", text) for text in self.public),
            *(("assumed", "{}", text) for text in self.assumptions),
        ]
        return [(label, text.format(fact)) for label, text, fact in facts if fact is not None]

    @property
    def _title(self) -> str:
        if not self.uncovered:
            return "Privacy report"
        return f"Privacy report that does NOT cover all of this: {'; '.join(self.uncovered)}"

    def __repr__(self) -> str:
        """The guarantee in one line."""
        shown = f"protected={self.protected}, epsilon={self.epsilon:.4g}, delta={self.delta:g}, adjacency={self.adjacency!r}"
        return f"PrivacyReport({shown})"

    def __str__(self) -> str:
        """Plain text."""
        return Table(f"{self._title}\n{'-' * 14}", self._rows()).text()

    def _table(self) -> Table:
        return Table(self._title, self._rows())

    def to_markdown(self) -> str:
        """Markdown table."""
        body = "\n".join(
            f"| {k.strip()} | {v.replace('|', chr(92) + '|')} |" for k, v in self._rows()
        )
        return f"| {self._title} | |\n| --- | --- |\n{body}\n"

    def to_html(self) -> str:
        """HTML table."""
        return self._table().html()


def weak_epsilon(epsilon: float) -> str | None:
    """What a large epsilon allows. (An infinite one is for tests; reports state it.)"""
    if not _WEAK_EPSILON < epsilon < math.inf:
        return None
    return (
        f"epsilon = {epsilon:g} is above {_WEAK_EPSILON:g}: an attacker's odds of being right about a record may grow by a factor e^{epsilon:g}. "
        "This is practically no protection"
    )


def weak_delta(delta: float, n_records: int | None) -> str | None:
    """What a delta that is large for a public number of records allows."""
    if n_records is None or delta * n_records < 1:
        return None
    return (
        f"delta = {delta:g} is not below 1 / (number of records) = {1 / n_records:.2g}: the guarantee then allows a mechanism that publishes one "
        "whole record, drawn at random"
    )


def report_of(budget: Any) -> PrivacyReport:
    """Privacy statement of everything that a :class:`~pymc_dp.PrivacyBudget` has claimed."""
    terms, ledger, steps = budget.terms, budget.ledger, budget.steps.values()
    claims: Claims = ledger.claimed(terms)
    spent, proved_by = claims.spent()
    secret, substitution = all(s.secret for s in steps), terms.adjacency is Adjacency.SUBSTITUTE
    records: set[int | None] = {step.n_records for step in steps} or {budget.n_records}
    bound, cost = claims.bound, claims.bound or Cost.of(())
    protected = bound is not None and secret
    mu, rho = (x if bound and x < math.inf else None for x in (cost.mu_squared, cost.rho))
    made, planned = claims.made.counts, Cost.of(budget.planned).counts
    rest = [(m, k - made.get(m, 0)) for m, k in planned.items() if k > made.get(m, 0)]
    one_off = budget.one_off_accesses | ({"planned, not made": rest} if rest else {})
    first, *others = _ASSUMPTIONS_OF_SUMS if budget.planned else _ASSUMPTIONS
    number = [_PUBLIC_NUMBER] if substitution else []
    own = [f"{_OWN_GROUP}{', and is public' if substitution else ''}."] if budget.group else []
    by_all = ledger.account.epsilon if ledger.account.is_gaussian else ledger.spent()
    return PrivacyReport(
        protected=protected,
        epsilon_budget=terms.epsilon,
        epsilon=spent,
        delta=terms.delta,
        gaussian_mu=None if mu is None else math.sqrt(mu),
        zcdp_rho=rho,
        attack_power={
            name: cost.max_true_positive_rate(rate) if protected else 1.0
            for name, rate in (("0.1%", 0.001), ("1%", 0.01))
        },
        adjacency=terms.adjacency.value,
        accountant=terms.accountant,
        proved_by=proved_by,
        chains=0 if budget.planned else budget.chains,
        n_records=records.pop() if substitution and len(records) == 1 else None,
        secret_randomness=secret,
        ledger=None if ledger.temporary else Path(ledger.path).name,
        steps=tuple(StepReport.of(step, claims.claims) for step in steps),
        one_off_accesses={label: listed(accesses) for label, accesses in one_off.items()},
        draws=budget.run.draws_of_chains(),
        assumptions=(first, *number, *own, *others),
        public=tuple(dict.fromkeys(text for step in steps for text in step.declared)),
        account_epsilon=by_all if ledger.n_budgets > 1 else None,
        budgets_without_ledger=budgets_without_file(),
        claimed=dumps(list(claims.cost.counts.items())),
        order=terms.adaptive.order,
        at_once=claims.at_once,
        group=budget.group,
    )
