"""Public values as JSON, and back: all that is released, reported or written into a ledger.

A value is an object of a known class, in fields: numbers, names, arrays, and tuples and dicts of these. Nothing is
executed: an unknown class is refused, and constructors check what they get.
"""

from __future__ import annotations

import json
import math

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", bound=type)
_KINDS: dict[str, type] = {}
#: Marks of what JSON has not: objects, arrays, numbers that are not finite.
_KIND, _ARRAY, _FLOAT = "@kind", "@array", "@float"


def published(kind: T) -> T:
    """Class decorator: values of a frozen dataclass, or of a class with ``to_dict`` and ``from_dict``, can be written.

    A class of the user's may have the name of one of this package, and does not take its place.
    """
    if kind.__name__ not in _KINDS or kind.__module__.startswith("pymc_dp."):
        _KINDS[kind.__name__] = kind
    return kind


def dumps(value: Any, indent: int | None = None) -> str:
    """A value as JSON; ValueError for an object that cannot be read back."""
    return json.dumps(_plain(value), indent=indent)


def loads(text: str) -> Any:
    """Read what :func:`dumps` wrote; lists become tuples. ValueError for a class that this version does not know."""
    return _value(json.loads(text))


def _plain(value: Any) -> Any:
    name = type(value).__name__
    if _KINDS.get(name) is type(value):
        if not is_dataclass(value):
            return {_KIND: name} | _plain(value.to_dict())  # type: ignore[attr-defined]
        found = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return {_KIND: name} | {k: str(v) if _is_infinite(v) else _plain(v) for k, v in found.items()}  # fmt: skip
    if isinstance(value, np.ndarray):
        return {_ARRAY: _plain(value.ravel().tolist()), "shape": value.shape}
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if _is_infinite(value):
        return {_FLOAT: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"A {name} cannot be written as JSON.")


def _is_infinite(value: Any) -> bool:
    """Fields of reports are read by others, too: ``"inf"``."""
    return isinstance(value, float) and not math.isfinite(value)


def _value(found: Any) -> Any:
    if isinstance(found, list):
        return tuple(_value(v) for v in found)
    if not isinstance(found, dict):
        return found
    if _FLOAT in found:
        return float(found[_FLOAT])
    if _ARRAY in found:
        return np.reshape(np.array(_value(found[_ARRAY])), found["shape"])
    values = {k: _value(v) for k, v in found.items() if k != _KIND}
    if _KIND not in found:
        return values
    kind = _KINDS.get(found[_KIND])
    if kind is None:
        raise ValueError(f"There is a {found[_KIND]!r} in the file, which this version of pymc_dp does not know.")  # fmt: skip
    if not is_dataclass(kind):
        return kind.from_dict({k: v for k, v in found.items() if k != _KIND})  # type: ignore[attr-defined]
    floats = {f.name for f in fields(kind) if "float" in str(f.type)}
    words = {k for k, v in values.items() if k in floats and isinstance(v, str)}
    return kind(**values | {k: float(values[k]) for k in words})
