"""Exceptions and warnings. Messages never contain a private value."""

from __future__ import annotations

from typing import Any

__all__ = [
    "LedgerError",
    "ModelError",
    "PrivacyBudgetExhausted",
    "PrivacyLeak",
    "PrivacyLeakWarning",
    "PymcDPError",
    "UnsupportedModel",
    "WeakGuaranteeWarning",
]


class PymcDPError(Exception):
    """Base class of all errors raised by pymc_dp.

    Examples
    --------
    >>> issubclass(dp.PrivacyBudgetExhausted, dp.errors.PymcDPError)
    True
    """


class UnsupportedModel(PymcDPError, ValueError):
    """The model, as written, cannot be sampled privately; the message states what to change.

    Examples
    --------
    >>> with pm.Model():
    ...     total = pm.Normal("total", pm.Normal("mu", 0, 1), 1.0, observed=3.0)  # no rows
    ...     try:
    ...         dp.Simulator()
    ...     except dp.UnsupportedModel as error:
    ...         print("cannot be sampled privately")
    cannot be sampled privately
    """


class PrivacyBudgetExhausted(PymcDPError, RuntimeError):
    """An access would have exceeded the budget; nothing was accessed.

    Examples
    --------
    >>> budget = dp.PrivacyBudget(epsilon=0.5, delta=1e-6, chains=1)
    >>> try:
    ...     budget.spend("mean age", [(dp.privacy.Gaussian(1.0), 1)])
    ... except dp.PrivacyBudgetExhausted:
    ...     print("nothing was accessed")
    nothing was accessed
    """


class PrivacyLeak(PymcDPError, RuntimeError):
    """An access or a release that was not charged for; it was refused.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     idata = pm.sample_prior_predictive(10)
    >>> try:
    ...     dp.release(idata, model)
    ... except dp.errors.PrivacyLeak:
    ...     print("nothing was released")
    nothing was released
    """


class ModelError(PymcDPError, RuntimeError):
    """The model's own code raised on private data; its message may show private values, and is withheld.

    Parameters
    ----------
    message : str
        What failed, without private values.
    kind : str
        Name of the type of the model's own error.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     group, effect = pm.Data("group", np.arange(9)), pm.Normal("effect", shape=5)
    ...     _ = pm.Normal("y", effect[group], observed=np.zeros(9))
    >>> try:
    ...     dp.model.RecordLikelihood(model)
    ... except dp.errors.ModelError as error:
    ...     print(error.kind)
    IndexError
    """

    def __init__(self, message: str, kind: str = "an error") -> None:
        super().__init__(message)
        self.kind = kind


class LedgerError(PymcDPError, RuntimeError):
    """The ledger file cannot be read, written or trusted.

    Examples
    --------
    >>> account = dp.Ledger(epsilon=1.0, delta=1e-6)
    >>> try:
    ...     dp.PrivacyBudget(epsilon=2.0, delta=1e-6, chains=1, ledger=account)
    ... except dp.errors.LedgerError:
    ...     print("the account allows 1.0")
    the account allows 1.0
    """


class PrivacyLeakWarning(UserWarning):
    """Something that the guarantee does not cover may reveal private values.

    Examples
    --------
    To raise an error in its place:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", dp.PrivacyLeakWarning)
    """


class WeakGuaranteeWarning(UserWarning):
    """The requested guarantee holds, but gives little protection.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     budget = dp.PrivacyBudget(epsilon=25.0, delta=1e-6, chains=1)
    >>> [warning.category.__name__ for warning in caught]
    ['WeakGuaranteeWarning']
    """


_SPENT = "Spent: "


def explain(error: BaseException, budget: Any, scores: object = None) -> None:
    """Add a note to an error that ends a run: what was spent, what is left, and how to go on; none if nothing was spent."""
    if budget is None or any(n.startswith(_SPENT) for n in getattr(error, "__notes__", ())):
        return
    try:
        spent, account, by_all = budget.spent(), budget.ledger.account, budget.ledger.spent()
    except LedgerError:
        return  # the error itself is about the ledger, or the program's end has removed a temporary one
    if not spent:
        return
    how = (
        "Released sums are in error.scores, and these are paid for: dp.sample(step=dp.DPScore(error.scores, ...)) samples from them at no cost."
        if scores is not None
        else "Another run needs a new PrivacyBudget; to keep one account for the data set, give it the same ledger file."
    )
    error.add_note(
        f"{_SPENT}epsilon = {spent:.4g} of {budget.epsilon:g} of this budget (error.budget), and {by_all:.4g} of {account.epsilon:g} of the account "
        f"in its ledger; claims are not refunded. {how}"
    )
