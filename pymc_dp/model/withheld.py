"""Errors raised on private data, without their words: these may show values."""

from __future__ import annotations

import logging

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from pymc_dp.errors import ModelError, PerformanceWarning, PymcDPError

__all__ = ["evaluate", "no_log_of_rewrites", "without_words"]

T = TypeVar("T")


def evaluate(where: str, function: Callable[..., T], *arguments: Any, private: bool = True) -> T:
    """Call a function that evaluates private data.

    Parameters
    ----------
    where : str
        What is done, for the message.
    function : callable
    *arguments
        Of the function.
    private : bool
        False passes errors on as they are, for public data.

    Raises
    ------
    ModelError
        In place of any error that is not this package's own. It has neither the words of that
        error nor a reference to it.
    """
    if not private:
        return function(*arguments)
    failed: BaseException
    try:
        with np.errstate(all="ignore"):  # a warning would say something of the data
            return function(*arguments)
    except (PymcDPError, PerformanceWarning):
        raise
    except Exception as error:
        failed = without_words(error, where)
    raise failed  # out here, so that the error is not its context


@contextmanager
def no_log_of_rewrites() -> Iterator[None]:
    """PyTensor logs what a rewrite raised, with the values it worked on, and goes on: not here."""
    logger = logging.getLogger("pytensor.graph.rewriting.basic")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def without_words(error: BaseException, where: str) -> BaseException:
    """What to raise in place of an error: an interruption, or where the error was raised and its type."""
    inner: BaseException | None = error
    while isinstance(inner, SystemError):  # how compiled code passes on an interruption
        inner = inner.__cause__ or inner.__context__
    if isinstance(inner, KeyboardInterrupt):
        return KeyboardInterrupt()
    kind = error.kind if isinstance(error, ModelError) else type(error).__name__
    return ModelError(
        f"The model raised {kind} {where}; what it said is withheld, as it may show private values. "
        "Run the model on simulated data, or with budget=None on public data, to see it.",
        kind,
    )
