"""Parts of a report that are computed from claims: steps, accesses in words, strength, assumptions."""

from __future__ import annotations

import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scipy.special import ndtr, ndtri

from pymc_dp.codec import published
from pymc_dp.display import Shown
from pymc_dp.privacy.accounting.composition import Cost
from pymc_dp.privacy.budget.allocation import StepAccess
from pymc_dp.privacy.budget.claims import Claim
from pymc_dp.privacy.mechanisms.mechanism import Accesses

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


@published
@dataclass(frozen=True)
class StepReport(Shown):
    """Claims of one step."""

    label: str
    chains: int
    per_draw: tuple[str, ...]
    per_chain: tuple[str, ...]

    @classmethod
    def of(cls, access: StepAccess, claims: Sequence[Claim]) -> StepReport:
        """From the accesses of a step, and the claims of a budget."""
        claims = [claim for claim in claims if claim.step == access.label]
        each, starting = listed(access.mechanisms), listed(access.starting)
        if access.schedule is not None:
            each = tuple(f"{name} (draw 1, then by a schedule)" for name in each)
        per_draw = (*each, *(f"{name} (once a chain)" for name in starting))
        per_chain = listed(claims[0].accesses) if claims else ()
        return cls(access.label, len(claims), per_draw, per_chain)

    def rows(self) -> list[tuple[str, str]]:
        """Rows of the report."""
        return [
            (self.label, f"{self.chains} chain(s) claimed"),
            *(("  each draw", access) for access in self.per_draw),
            *(("  each chain", claim) for claim in self.per_chain),
        ]


def assumptions(
    substitution: bool, *, chains: bool = True, group: str | None = None
) -> tuple[str, ...]:
    """Assumptions of the guarantee, in words; `chains`: whether chains access the data; `group`: of records."""
    first, *others = _ASSUMPTIONS if chains else _ASSUMPTIONS_OF_SUMS
    disjoint = f"The group of a record depends on this record only{', and is public' if substitution else ''}."
    return (
        first,
        *([_PUBLIC_NUMBER] if substitution else []),
        *([disjoint] if group is not None else []),
        *others,
    )


def strength(bound: Cost | None, secret: bool) -> dict[str, Any]:
    """Fields of a report that follow from a bound on all that the budget pays for, if there is one."""
    cost = Cost.of([]) if bound is None else bound
    protected = bound is not None and secret
    rates = {"0.1%": 0.001, "1%": 0.01}
    return {
        "protected": protected,
        "gaussian_mu": None if bound is None else _finite(math.sqrt(cost.mu_squared)),
        "zcdp_rho": None if bound is None else _finite(cost.rho),
        "attack_power": {
            name: max_true_positive_rate(cost, rate) if protected else 1.0
            for name, rate in rates.items()
        },
    }


def max_true_positive_rate(cost: Cost, false_positive_rate: float) -> float:
    r"""Largest true positive rate of any attack on two neighbouring data sets, at a false positive rate in (0, 1).

    Exact for Gaussian mechanisms: :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (section 2 of Dong, Roth,
    Su 2022, https://doi.org/10.1111/rssb.12454). Else the smallest that follows from (epsilon, delta) pairs, the one at
    ``delta = 0`` included.
    """
    if cost.free:
        return false_positive_rate
    power = 1.0
    if cost.mu_squared < math.inf:
        power = float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost.mu_squared)))
    pairs = [(e, cost.delta(e, "rdp")) for e in np.geomspace(1e-3, 50, 200).tolist()]
    if cost.pure_epsilon <= 50:
        pairs.append((cost.pure_epsilon, 0.0))
    for epsilon, delta in pairs:
        power = min(
            power,
            math.exp(epsilon) * false_positive_rate + delta,
            1 - math.exp(-epsilon) * (1 - false_positive_rate - delta),
        )
    return power


def _finite(value: float) -> float | None:
    return value if value < math.inf else None


def one_off(made: Mapping[str, Accesses], plan: Accesses) -> dict[str, tuple[str, ...]]:
    """Accesses outside of chains in words, by label, with those of a plan that were paid for but not made."""
    before = Cost.of(access for accesses in made.values() for access in accesses).counts
    rest = [(m, k - before.get(m, 0)) for m, k in Cost.of(plan).counts.items()]
    not_made = {"planned, not made": [(m, k) for m, k in rest if k > 0]}
    return {label: listed(a) for label, a in {**made, **not_made}.items() if a}


def listed(accesses: Accesses) -> tuple[str, ...]:
    """Accesses in words; only the first and the last ones of many."""
    names = [f"{count:g} x {mechanism.name}" for mechanism, count in accesses]
    if len(names) > 6:
        names[2:-2] = [f"... ({len(names) - 4} kinds more) ..."]
    return tuple(names)
