"""Whether ``pm.set_data`` has replaced data of a model after they were compiled."""

from __future__ import annotations

import weakref

from typing import Any
from weakref import ReferenceType, WeakKeyDictionary

import numpy as np
import pymc as pm

_NOTED: WeakKeyDictionary[Any, dict[str, ReferenceType[np.ndarray]]] = WeakKeyDictionary()


def note_data(compiled: Any, model: pm.Model) -> None:
    """Remember which arrays the model holds, as this log-likelihood has been compiled from them."""
    arrays = {str(v.name): _held(v) for v in model.data_vars}
    _NOTED[compiled] = {name: weakref.ref(a) for name, a in arrays.items() if a is not None}


def check_data_are_those(compiled: Any, model: pm.Model) -> None:
    """Raise ValueError if the model holds other arrays than when this log-likelihood was compiled.

    Arrays are compared as objects, never by their values, which are private.
    """
    noted = _NOTED.get(compiled, {})
    held = {str(v.name): _held(v) for v in model.data_vars}
    if changed := [name for name, array in noted.items() if held.get(name) is not array()]:
        raise ValueError(
            f"pm.set_data has replaced {', '.join(map(repr, changed))} after the model was compiled, and what was compiled has the earlier data: "
            "build the step, plan or Simulator again after pm.set_data. Nothing was accessed."
        )


def _held(variable: Any) -> np.ndarray | None:
    container = getattr(variable, "container", None)
    value = None if container is None else container.storage[0]
    return value if isinstance(value, np.ndarray) else None
