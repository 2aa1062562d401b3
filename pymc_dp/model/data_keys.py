"""Which data a model observes, as a key that means something in this process only."""

from __future__ import annotations

import hashlib
import os

from collections.abc import Iterable

import numpy as np
import pymc as pm

from pymc_dp.model.public_arrays import is_structural
from pymc_dp.model.roots import observed_arrays

__all__ = ["data_keys"]

#: Drawn anew by each process: nobody can try out guesses of the data on a key.
_SECRET = os.urandom(32)


def data_keys(model: pm.Model, private: Iterable[np.ndarray] = ()) -> tuple[bytes, ...]:
    """Keyed hashes of observed and other private arrays, to recognise the same data in another model.

    Patterns without data, such as the zeros of the "zeros trick", have none.
    """
    keys: dict[bytes, None] = {}
    for array in (*observed_arrays(model), *private):
        if is_structural(array):
            continue
        digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), key=_SECRET)
        digest.update(np.ascontiguousarray(array).data.cast("B"))
        keys[digest.digest()] = None
    return tuple(keys)
