"""A number that identifies a model."""

from __future__ import annotations

import secrets

from weakref import WeakValueDictionary

import pymc as pm

_NAME = "_pymc_dp_token"
_LIVING: WeakValueDictionary[int, pm.Model] = WeakValueDictionary()


def model_token(model: pm.Model) -> int:
    """Return the random number of this model, which no other model has.

    It is drawn at the first call and stored in the model, so a pickled copy has the same number.
    (Python may give ``id(model)`` to a new model once the old one is deleted.)
    """
    found = model.__dict__.get(_NAME)
    if found is None:
        found = 1 + secrets.randbelow(2**63 - 1)
        model.__dict__[_NAME] = found
    _LIVING[int(found)] = model
    return int(found)


def model_of(token: int) -> pm.Model | None:
    """Return the model with this number, if it still exists in this process."""
    return _LIVING.get(token)
