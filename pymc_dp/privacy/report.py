"""The privacy statement that travels with a released posterior."""

from __future__ import annotations

import html
import json
import math

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.privacy.allowance import StepAccess
from pymc_dp.privacy.composition import Cost
from pymc_dp.privacy.ledger import Claim
from pymc_dp.privacy.mechanisms import Mechanism

__all__ = ["PrivacyReport", "StepReport", "listed", "max_true_positive_rate"]

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
        False if epsilon is infinite or the randomness is known: nothing is guaranteed then.
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
        for name in ("epsilon_budget", "epsilon", "gaussian_mu", "zcdp_rho"):
            values[name] = math.inf if values[name] == "inf" else values[name]
        values["steps"] = tuple(StepReport(**step) for step in values["steps"])
        return cls(**values)

    @classmethod
    def of(cls, released: Any) -> PrivacyReport:
        """Report of what ``release`` or ``sample`` has returned, also if read back from a file.

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
                return cls.from_json(text)
        raise ValueError(
            "There is no privacy report: this is not what release() or sample() has returned."
        )

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        if not self.protected:
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
                rows.append(
                    ("WEAK DELTA", "not below 1 / (number of records): whole records may leak")
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
        rows += [("assumed", text) for text in self.assumptions]
        return rows

    def __str__(self) -> str:
        """Plain text."""
        rows = self._rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join(["Privacy report", "-" * 14, *(f"{k:<{width}}  {v}" for k, v in rows)])

    def to_text(self) -> str:
        """Plain text."""
        return str(self)

    def to_markdown(self) -> str:
        """Markdown table."""
        body = "\n".join(
            f"| {k.strip()} | {v.replace('|', chr(92) + '|')} |" for k, v in self._rows()
        )
        return f"| Privacy report | |\n| --- | --- |\n{body}\n"

    def to_html(self) -> str:
        """HTML table."""
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(k)}</th><td style='text-align:left'>{html.escape(v)}</td></tr>"
            for k, v in self._rows()
        )
        return f"<table><caption>Privacy report</caption>{body}</table>"

    def _repr_html_(self) -> str:
        return self.to_html()


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    """Bound the power of any attack that tells two neighbouring data sets apart.

    Parameters
    ----------
    cost : Cost
        Of everything released.
    false_positive_rate : float
        How often the attacker may cry wolf, in (0, 1).

    Returns
    -------
    float
        Largest possible true positive rate: exact for Gaussian mechanisms, else from all (epsilon,
        delta) pairs.
    """
    if cost.free:
        return false_positive_rate
    power = 1.0
    if cost.mu_squared < math.inf:
        power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost.mu_squared)))
    for epsilon in np.geomspace(1e-3, 50, 200):
        delta = cost.delta(epsilon, "rdp")
        power = min(
            power,
            math.exp(epsilon) * false_positive_rate + delta,
            1 - math.exp(-epsilon) * (1 - false_positive_rate - delta),
        )
    return power


def _finite(value: float) -> float | None:
    return value if value < math.inf else None


def listed(accesses: Sequence[tuple[Mechanism, float]]) -> tuple[str, ...]:
    """Accesses in words; the first and the last ones of many."""
    names = [f"{count:g} x {mechanism.name}" for mechanism, count in accesses]
    if len(names) > 6:
        names[2:-2] = [f"... ({len(names) - 4} kinds more) ..."]
    return tuple(names)
