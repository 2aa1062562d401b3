"""Exceptions and warnings. Messages never contain a private value."""

from __future__ import annotations

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
    """Base class of all errors raised by pymc_dp."""


class UnsupportedModel(PymcDPError, ValueError):
    """The model, as written, cannot be sampled privately; the message states what to change."""


class PrivacyBudgetExhausted(PymcDPError, RuntimeError):
    """An access would have exceeded the budget; nothing was accessed."""


class PrivacyLeak(PymcDPError, RuntimeError):
    """An access or a release that was not charged for; it was refused."""


class ModelError(PymcDPError, RuntimeError):
    """The model's own code raised on private data; its message may show private values, and is withheld.

    Parameters
    ----------
    message : str
    kind : str
        Name of the type of that error.
    """

    def __init__(self, message: str, kind: str = "an error") -> None:
        super().__init__(message)
        self.kind = kind


class LedgerError(PymcDPError, RuntimeError):
    """The ledger file cannot be read, written or trusted."""


class PrivacyLeakWarning(UserWarning):
    """Something that the guarantee does not cover may reveal private values."""


class WeakGuaranteeWarning(UserWarning):
    """The requested guarantee holds, but gives little protection."""
