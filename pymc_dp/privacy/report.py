"""The privacy statement that travels with a released posterior."""

from __future__ import annotations

import html
import json
import math

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pymc_dp.privacy.allowance import StepAccess
from pymc_dp.privacy.attacks import max_true_positive_rate
from pymc_dp.privacy.composition import Cost
from pymc_dp.privacy.coverage import Coverage, uncovered
from pymc_dp.privacy.ledger import Claim
from pymc_dp.privacy.mechanisms import Mechanism
from pymc_dp.privacy.weakness import MUCH, in_all, weak_delta, weak_epsilon

__all__ = ["PrivacyReport", "StepReport", "listed"]

_NEIGHBOURS = {
    "substitute": "data sets that differ in the value of one record (substitute one record)",
    "add_remove": "data sets of which one has one record more (add or remove one record)",
}
_PUBLIC_NUMBER = "The number of records is public (under substitution)."
_ASSUMPTIONS = (
    "Only the chain's states, accept/reject outcomes and proposal distances are released, by release() or sample().",
    "Priors, clip bounds, proposals, noise scales and initial points were not chosen by looking at the data.",
    "Each privacy unit's rows appear in one record only, and no record's contribution depends on another record.",
)

_MAY_BE_INFINITE = (
    "epsilon_budget",
    "epsilon",
    "gaussian_mu",
    "zcdp_rho",
    "account_epsilon",
    "total_epsilon",
)


@dataclass(frozen=True)
class StepReport:
    """What one step claimed.

    Parameters
    ----------
    label : str
        Name of the step with its variables.
    chains : int
        Number of chains that claimed a share.
    per_draw : tuple of str
        Accesses of one iteration.
    per_chain : tuple of str
        Accesses claimed by each chain: mechanisms and counts, or a share of a filter where the
        proposals decide the count.
    """

    label: str
    chains: int
    per_draw: tuple[str, ...]
    per_chain: tuple[str, ...]

    @classmethod
    def of(cls, access: StepAccess, claims: Sequence[Claim]) -> StepReport:
        """From what a step accesses, and what its chains have claimed."""
        each, once = listed(access.mechanisms), listed(access.starting)
        if access.schedule is not None:
            each = tuple(f"{name} (draw 1, then by a schedule)" for name in each)
        per_draw = (*each, *(f"{name} (once a chain)" for name in once))
        return cls(
            access.label, len(claims), per_draw, listed(claims[0].accesses) if claims else ()
        )


@dataclass(frozen=True)
class PrivacyReport:
    """Privacy statement: text by ``str()``, :meth:`to_markdown`, HTML in notebooks, :meth:`to_dict`, :meth:`to_json`.

    Parameters
    ----------
    protected : bool
        Whether what carries this report may be published under its guarantee. False if epsilon is
        infinite or the randomness is known, and if there is something in it that the report does
        not cover.
    epsilon_budget, delta : float
        Terms of the budget.
    epsilon : float
        Spent, at ``delta``, by everything claimed; it holds whatever it was that decided to stop here.
    gaussian_mu, zcdp_rho : float or None
        Of all that the budget pays for, in these currencies, where what bounds it has them: a plan of known
        mechanisms, or Gaussian DP; one Rényi order has not.
    attack_power : dict of str to float
        Largest true positive rate of any attack at the false positive rates 0.1 % and 1 %, on all that
        the budget pays for.
    accountant, proved_by : str
        The accountant asked for, and the one that proves epsilon (see
        :mod:`pymc_dp.privacy.composition` and :mod:`pymc_dp.privacy.adaptive`).
    chains : int
        Chains the budget is shared over.
    n_records : int or None
        Number of privacy units where it is public.
    steps : tuple of StepReport
        What was accessed, step by step.
    once : dict of str to tuple of str
        What was accessed outside of all chains.
    draws : tuple of int
        Draws made so far, chain by chain, as the callback saw them.
    ledger : str or None
        Name of the ledger's file; None if it is temporary.
    public, kept : tuple of str
        Arrays that were declared public; variables that were kept although they show data.
    covers : dict or None
        Groups of the released result, with names of their variables and coordinates and the lengths
        of their axes. None for a report that was not made by ``release``.
    uncovered : tuple of str
        What :meth:`of` has found besides.
    account_epsilon : float or None
        Of all budgets on the same ledger together, if there are several.
    other_budgets : int
        Number of budgets on other ledgers that were spent on the same data in this program.
    total_epsilon, total_delta : float or None
        Sums over this one's ledger and theirs (basic composition); None if there are none, or if they
        are for another adjacency, so that costs cannot be added.
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
    once: dict[str, tuple[str, ...]]
    draws: tuple[int, ...]
    assumptions: tuple[str, ...]
    public: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    covers: Coverage | None = None
    uncovered: tuple[str, ...] = ()
    account_epsilon: float | None = None
    other_budgets: int = 0
    total_epsilon: float | None = None
    total_delta: float | None = None

    @classmethod
    def build(
        cls,
        *,
        epsilon: float,
        delta: float,
        spent: float,
        proved_by: str,
        cost: Cost | None,
        chains: int,
        adjacency: str,
        accountant: str,
        n_records: int | None,
        secret: bool,
        ledger: str | None,
        steps: tuple[StepReport, ...],
        once: dict[str, tuple[str, ...]],
        draws: tuple[int, ...] = (),
        account_epsilon: float | None = None,
        together: tuple[int, float | None, float | None] = (0, None, None),
        declared: tuple[str, ...] = (),
    ) -> PrivacyReport:
        """Put a report together; ``cost=None`` means nothing is protected."""
        protected = cost is not None and secret
        public = [_PUBLIC_NUMBER] if adjacency == "substitute" else []
        power = {"0.1%": 0.001, "1%": 0.01}
        attack = {
            k: (max_true_positive_rate(cost, f) if cost is not None and protected else 1.0)
            for k, f in power.items()
        }
        return cls(
            protected=protected,
            epsilon_budget=epsilon,
            epsilon=spent,
            delta=delta,
            gaussian_mu=_finite(math.sqrt(cost.mu_squared)) if cost is not None else None,
            zcdp_rho=_finite(cost.rho) if cost is not None else None,
            attack_power=attack,
            adjacency=adjacency,
            accountant=accountant,
            proved_by=proved_by,
            chains=chains,
            n_records=n_records,
            secret_randomness=secret,
            ledger=ledger,
            steps=steps,
            once=once,
            draws=draws,
            assumptions=(_ASSUMPTIONS[0], *public, *_ASSUMPTIONS[1:]),
            account_epsilon=account_epsilon,
            other_budgets=together[0],
            total_epsilon=together[1],
            total_delta=together[2],
            public=declared,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, for machines."""
        return asdict(self)

    def to_json(self) -> str:
        """JSON text; infinities become the string ``"inf"``."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return [plain(v) for v in value]
            return "inf" if value == math.inf else value

        return json.dumps(plain(self.to_dict()))

    @classmethod
    def from_json(cls, text: str) -> PrivacyReport:
        """Read what :meth:`to_json` wrote."""

        def with_tuples(found: dict[str, Any]) -> dict[str, Any]:
            return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}

        values = json.loads(text, object_hook=with_tuples)
        for name in _MAY_BE_INFINITE:
            values[name] = math.inf if values.get(name) == "inf" else values.get(name)
        values["steps"] = tuple(StepReport(**step) for step in values["steps"])
        return cls(**values)

    @classmethod
    def of(cls, released: Any) -> PrivacyReport:
        """Report of what ``release`` or ``sample`` has returned, also if read back from a file.

        What was added since (as by ``extend_inferencedata=True``, or by
        ``pm.compute_log_likelihood``) is in :attr:`uncovered`: the report is then not
        :attr:`protected`, and says so first. ``release(released)`` drops it. Names and lengths are
        compared, values are not.

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
        rows = []
        if self.uncovered:
            rows.append(
                (
                    "NOT PROTECTED",
                    f"this was added after release, and may show the data: {'; '.join(self.uncovered)}. release() of this object drops it",
                )
            )
        if self.kept:
            names = ", ".join(self.kept)
            rows.append(
                ("NOT PROTECTED", f"kept at the user's wish, outside the guarantee: {names}")
            )
        if self.epsilon_budget == math.inf or not self.secret_randomness:
            why = (
                "epsilon is infinite"
                if self.epsilon_budget == math.inf
                else "the randomness is reproducible, hence known to an attacker"
            )
            rows.append(("NOT PROTECTED", f"{why}; the figures below guarantee nothing"))
        rows += [
            (
                "guarantee",
                f"({self.epsilon:.4g}, {self.delta:g})-differential privacy, of a budget of ({self.epsilon_budget:g}, {self.delta:g})",
            ),
            ("neighbours", _NEIGHBOURS[self.adjacency]),
        ]
        if self.n_records is not None:
            rows.append(("records", f"{self.n_records}"))
            if self.delta * self.n_records >= 1:
                rows.append(("WEAK DELTA", weak_delta(self.delta, self.n_records)))
        if MUCH < self.epsilon_budget < math.inf:
            rows.append(("WEAK EPSILON", weak_epsilon(self.epsilon_budget)))
        if self.other_budgets:
            rows.append(
                ("OTHER BUDGETS", in_all(self.other_budgets, self.total_epsilon, self.total_delta))
            )
        if self.account_epsilon is not None:
            rows.append(
                (
                    "account",
                    f"all budgets on this ledger together: epsilon = {self.account_epsilon:.4g}",
                )
            )
        rows.append(("chains", f"shared over {self.chains}"))
        if self.draws:
            rows.append(("draws", " + ".join(map(str, self.draws))))
        rows += [(label, access) for label, listed in self.once.items() for access in listed]
        for step in self.steps:
            rows.append((step.label, f"{step.chains} chain(s) claimed"))
            rows += [("  each draw", access) for access in step.per_draw]
            rows += [("  each chain", claim) for claim in step.per_chain]
        if self.gaussian_mu is not None and self.epsilon > 0:
            rows.append(("Gaussian DP", f"mu <= {self.gaussian_mu:.4g}"))
        if self.zcdp_rho is not None and self.epsilon > 0:
            rows.append(("zCDP", f"rho <= {self.zcdp_rho:.4g}"))
        for rate, power in self.attack_power.items():
            rows.append(
                (
                    "worst attack",
                    f"true positive rate at most {power:.2%} at false positive rate {rate}",
                )
            )
        least = f", by {self.proved_by}" if self.accountant == "best" != self.proved_by else ""
        rows.append(("accountant", self.accountant + least))
        rows.append(
            (
                "randomness",
                "secret, from the operating system"
                if self.secret_randomness
                else "REPRODUCIBLE from the seed: the guarantee is broken",
            )
        )
        rows.append(
            ("ledger", self.ledger or "temporary: spent privacy is forgotten when the program ends")
        )
        rows += [("declared public", text) for text in self.public]
        rows += [("assumed", text) for text in self.assumptions]
        return rows

    @property
    def _title(self) -> str:
        if not self.uncovered:
            return "Privacy report"
        return f"Privacy report that does NOT cover all of this: {'; '.join(self.uncovered)}"

    def __str__(self) -> str:
        """Plain text."""
        rows = self._rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join([self._title, "-" * 14, *(f"{k:<{width}}  {v}" for k, v in rows)])

    def to_text(self) -> str:
        """Plain text."""
        return str(self)

    def to_markdown(self) -> str:
        """Markdown table."""
        body = "\n".join(
            f"| {k.strip()} | {v.replace('|', chr(92) + '|')} |" for k, v in self._rows()
        )
        return f"| {self._title} | |\n| --- | --- |\n{body}\n"

    def to_html(self) -> str:
        """HTML table."""
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(k)}</th><td style='text-align:left'>{html.escape(v)}</td></tr>"
            for k, v in self._rows()
        )
        return f"<table><caption>{html.escape(self._title)}</caption>{body}</table>"

    def _repr_html_(self) -> str:
        return self.to_html()


def _finite(value: float) -> float | None:
    return value if value < math.inf else None


def listed(accesses: Sequence[tuple[Mechanism, float]]) -> tuple[str, ...]:
    """Accesses in words; the first and the last ones of many."""
    names = [f"{count:g} x {mechanism.name}" for mechanism, count in accesses]
    if len(names) > 6:
        names[2:-2] = [f"... ({len(names) - 4} kinds more) ..."]
    return tuple(names)
