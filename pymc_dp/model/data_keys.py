"""Keys that identify the data of a model, within one process."""

from __future__ import annotations

import hashlib
import os

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.model.graphs.data_variables import observed_arrays

#: New in each process, so that guesses of the data cannot be tested against a key.
_SECRET = os.urandom(32)


def row_keys(model: pm.Model, labels: Sequence[np.ndarray]) -> dict[str, tuple[bytes, bytes]]:
    """For each observed variable, keyed hashes of its values and of the record number of each row."""
    names = [rv.name for rv in model.observed_RVs]
    arrays = zip(observed_arrays(model), labels, strict=True)
    return {n: (_key(y), _key(rows)) for n, (y, rows) in zip(names, arrays, strict=True)}


class KeyedDigest:
    """Keyed hashes of arrays, begun with a text (type and shape) and continued with their bytes.

    The key is pickled with it, so other processes make the same hashes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, text: str) -> Any:
        """A digest of a text, and of this program's key."""
        return hashlib.blake2b(text.encode(), key=self._key)


new_digest = KeyedDigest(_SECRET)


def _key(array: np.ndarray) -> bytes:
    digest = new_digest(f"{array.dtype.str}{array.shape}")
    digest.update(np.ascontiguousarray(array).data.cast("B"))
    return digest.digest()
