"""Exceptions and warnings. Messages never contain a private value."""

from __future__ import annotations

from typing import Any


class PymcDPError(Exception):
    """Base class of all errors raised by pymc_dp."""


class UnsupportedModel(PymcDPError, ValueError):
    """The model, as written, cannot be sampled privately; the message says what to change."""


class PrivacyBudgetExhausted(PymcDPError, RuntimeError):
    """The data would have been accessed beyond the budget; nothing was accessed."""


class StartNotFound(PymcDPError, RuntimeError):
    """A private start was still moving when its share of the budget was spent; `start` is how far it came, `budget` what paid."""

    def __init__(self, message: str, start: Any = None) -> None:
        super().__init__(message)
        self.start = start


class PrivacyLeak(PymcDPError, RuntimeError):
    """Something that was not charged for would have been released or has touched the data."""


class ModelError(PymcDPError, RuntimeError):
    """The model's own code raised on private data; what it said may show private values.

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
    """Something the guarantee does not cover may reveal private values."""


class PerformanceWarning(UserWarning):
    """Something will be right, but slower than it need be; the message says what to change."""


class WeakGuaranteeWarning(UserWarning):
    """The guarantee that was asked for, and is kept, protects hardly anybody."""
