"""Which model a step was built on."""

from __future__ import annotations

import secrets

import pymc as pm

__all__ = ["model_token"]

_NAME = "_pymc_dp_token"


def model_token(model: pm.Model) -> int:
    """Return a number of this model: drawn when it is first asked for, never given to another one.

    It is kept in the model, so that a pickled model is still the same one. (``id(model)`` may be
    given to a new model as soon as the old one is deleted.)
    """
    found = model.__dict__.get(_NAME)
    if found is None:
        found = 1 + secrets.randbelow(2**63 - 1)
        model.__dict__[_NAME] = found
    return int(found)
