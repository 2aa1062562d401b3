"""A fingerprint of a likelihood's operations: scores are derivatives of one likelihood, and of no other.

It is published with the scores, so nothing of it comes from data. It has the operations by which parameters enter, and their
names. It has no values, types or lengths of arrays, no numbers (a number of the program may have been computed from data), no
names of data, and nothing of priors. What does not depend on parameters is one symbol. So ``sigma=1`` and ``sigma=2`` have the
same fingerprint, and so have ``y`` and ``log(y)``; logit and probit, or two orders of nesting, do not.

Versions of PyTensor write one formula differently. Quotients are products with an inverse here, differences are sums; factors
and terms have no order; and operations that move or copy entries are left out.
"""

from __future__ import annotations

import hashlib

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.model.graphs.data_variables import downstream, is_array_root, value_inputs
from pymc_dp.model.graphs.parameter_checks import SELECTIONS
from pymc_dp.model.graphs.public_arrays import inner_graphs

#: Stands for all that does not depend on parameters.
_FIXED = "fixed"
#: Operations that return one of their inputs, or its entries, and which.
_COPIES = {
    "Alloc": 0, "Assert": 0, "Cast": 0, "CheckAndRaise": 0, "CheckParameterValue": 0, "DimShuffle": 0, "Identity": 0,
    "Reshape": 0, "Second": 1, "SpecifyShape": 0,
}  # fmt: skip
_PRODUCTS = {"BatchedDot", "Dot", "Gemv", "MatMul"}
_POWERS = {"Sqr", "Sqrt", "Pow"}


def fingerprint(rows: Sequence[Variable], parameters: Sequence[Variable]) -> str:
    """Digest of how the parameters enter the graphs of row-wise log-likelihoods, independent of their order."""
    codes = _Codes()
    codes.update((p, p.name or f"input {k}") for k, p in enumerate(parameters))
    dependent = downstream(rows, parameters)
    for node in toposort(rows):
        for number, output in enumerate(node.outputs):
            if output in dependent and output not in codes:
                codes[output] = codes.of(node, number)
    return _digest(sorted(codes[row] for row in rows))


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class _Codes(dict[Variable, str]):
    """A text for each variable that depends on parameters; all other variables have the same one."""

    def __init__(self) -> None:
        super().__init__()
        self._terms: dict[str, tuple[str, list[str]]] = {}  # of sums and products, by their text

    def __missing__(self, variable: Variable) -> str:
        return _FIXED

    def of(self, node: Apply, number: int) -> str:
        """Text of an output of an operation."""
        name = _kind(node.op)
        if name in _COPIES:
            return self[node.inputs[_COPIES[name]]]
        parts = [self[v] for v in value_inputs(node)]
        if name in ("Add", "Mul"):
            return self._joined(name, parts)
        if name == "Neg":
            return self._joined("Mul", [_FIXED, *parts])
        if name == "Sub":
            return self._joined("Add", [parts[0], self._joined("Mul", [_FIXED, parts[1]])])
        if name == "TrueDiv":
            return self._joined("Mul", [parts[0], _inverse(parts[1])])
        if name == "Reciprocal":
            return _inverse(parts[0])
        if name == "Log1p":
            return _digest(["Log", "0", self._joined("Add", [_FIXED, *parts])])
        if name == "Expm1":
            return self._joined("Add", [_FIXED, _digest(["Exp", "0", *parts])])
        if name in _POWERS:
            return _digest(["Pow", *parts[:1], *(parts[1:] or [_FIXED])])
        inner = [fingerprint(outputs, _inputs(outputs)) for outputs in inner_graphs(node.op)]
        kept = [part for part in parts if part != _FIXED]
        return _digest([name, str(number), *(kept if isinstance(node.op, SELECTIONS) else parts), *inner])  # fmt: skip

    def _joined(self, name: str, parts: Sequence[str]) -> str:
        """Sum or product of terms in canonical order, with nested sums flattened."""
        flat: list[str] = []
        for part in parts:
            kind, terms = self._terms.get(part, ("", [part]))
            flat += terms if kind == name else [part]
        terms = sorted(part for part in flat if part != _FIXED)
        if not terms:
            return _FIXED
        terms += [_FIXED] * (_FIXED in flat)
        text = terms[0] if len(terms) == 1 else _digest([name, *terms])
        self._terms.setdefault(text, (name, terms))
        return text


def _inverse(part: str) -> str:
    return part if part == _FIXED else _digest(["Inverse", part])


def _kind(op: Any) -> str:
    """The computation of an operation, whatever the shapes."""
    if isinstance(op, SELECTIONS):
        return "Subtensor"
    op = getattr(op, "core_op", op)
    name = type(op.scalar_op if isinstance(op, Elemwise) else op).__name__
    return "Dot" if name in _PRODUCTS else name


def _inputs(outputs: Sequence[Variable]) -> list[Variable]:
    return [v for v in ancestors(outputs) if v.owner is None and not is_array_root(v)]
