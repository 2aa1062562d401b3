"""Errors raised on private data: their text is withheld, because it may show values."""

from __future__ import annotations

import logging

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from pymc_dp.errors import ModelError, PymcDPError

T = TypeVar("T")


def evaluate(where: str, function: Callable[..., T], *arguments: Any, private: bool = True) -> T:
    """Call a function that evaluates private data; `where` says what it does, for the message: "when ...".

    A ModelError replaces every error that is not from this package, and has neither its text nor a reference to it.
    """
    if not private:
        return function(*arguments)
    failed: BaseException
    try:
        with np.errstate(all="ignore"):  # a warning would depend on the data
            return function(*arguments)
    except PymcDPError:
        raise
    except Exception as error:
        failed = without_words(error, where)
    raise failed  # outside of the except block, so that the error is not its context


@contextmanager
def no_log_of_rewrites() -> Iterator[None]:
    """Switch off PyTensor's log of errors in rewrites, which shows the values of constants."""
    logger = logging.getLogger("pytensor.graph.rewriting.basic")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def without_words(error: BaseException, where: str) -> BaseException:
    """The error to raise in place of another: KeyboardInterrupt, or the type and place of the error."""
    inner: BaseException | None = error
    while isinstance(inner, SystemError):  # compiled code wraps interruptions in it
        inner = inner.__cause__ or inner.__context__
    if isinstance(inner, KeyboardInterrupt):
        return KeyboardInterrupt()
    kind = error.kind if isinstance(error, ModelError) else type(error).__name__
    return ModelError(
        f"The model raised {kind} {where}; its message is withheld, because it may show private values. "
        "Run the model on simulated data, or with budget=None on public data, to see it.",
        kind,
    )
