"""Parameter checks in PyMC's log-probability graphs: moved to the prior, or applied to each record.

PyMC wraps log-probabilities in assertions (``sigma > 0``) that must hold for *all* entries at once
and raise where one fails. A private likelihood cannot keep them: an exception that depends on a
record is a leak, and ``all`` makes every record's likelihood depend on every other record. Each
condition is therefore split into its elementwise parts.

- A part without data is public and moves to the prior, which is ``-inf`` where the part fails.
- A part with data that holds by construction (``0 <= sigmoid(.) <= 1``) is dropped.
- Every other part is applied to each record alone, whose log-likelihood is NaN where it fails. NaN
  propagates, as the exception would have; `RecordLikelihood` replaces it by ``-inf`` at the end.

The second rule saves time only: with all checks applied, a Bernoulli likelihood of 100 000 records
takes 1.4 times as long, a categorical one with softmax probabilities 1.8 to 1.9 times, and those of
Poisson, normal and negative binomial records the same. So `interval` has rules for probabilities (and
for indices, whose range must be proved), not for scales and rates. They hold in real arithmetic.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence, Set
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import math as psm
from pytensor.tensor import subtensor
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import SearchsortedOp
from pytensor.tensor.math import Argmax
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.special import Softmax

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import downstream, evaluate_without_inputs, joined, rebuilt

# AdvancedSubtensor1 and AdvancedIncSubtensor1 exist in PyTensor 2 only.
SELECTIONS = (
    subtensor.Subtensor
    | subtensor.AdvancedSubtensor
    | getattr(subtensor, "AdvancedSubtensor1", subtensor.Subtensor)
)
INCREMENTS = subtensor.AdvancedIncSubtensor | getattr(
    subtensor, "AdvancedIncSubtensor1", subtensor.AdvancedIncSubtensor
)
#: Operations whose entries are those of their first input.
_REARRANGEMENTS = (
    DimShuffle
    | SELECTIONS
    | Alloc
    | Reshape
    | SpecifyShape
    | CheckAndRaise
    | ScalarFromTensor
    | TensorFromScalar
)
Interval = tuple[float, float]
Bounds = Callable[[Variable], Interval]  # of all entries
REALS: Interval = (-np.inf, np.inf)


def strip_checks(
    outputs: Sequence[Variable],
    data_dependent: set[Variable],
    parameters: Sequence[Variable],
    private: bool = True,
) -> tuple[list[Variable], list[Variable]]:
    """Remove the parameter checks from elementwise log-probabilities.

    `data_dependent` has the variables in their graphs that depend on data. With `private`,
    UnsupportedModel is raised if a check joins the data of several records; otherwise such a check
    makes everything NaN where it fails. A check inside a loop or an inner graph is always refused.
    """
    new: dict[Variable, Variable] = {}
    conditions: list[Variable] = []
    depends_on_parameters = downstream(outputs, parameters)

    def without_checks(node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
        if isinstance(node.op, HasInnerGraph) and _hides_checks(node.op):
            raise UnsupportedModel(
                f"a likelihood has parameter checks inside {type(node.op).__name__}, where they "
                "cannot be made private. Compute it without a loop over random variables or "
                "pymc.logp inside, or give pm.CustomDist a logp function without checks."
            )
        if not isinstance(node.op, CheckAndRaise):
            return None
        value = inputs[0]
        for leaf in (leaf for check in node.inputs[1:] for leaf in _leaves(check)):
            condition = pt.as_tensor(new.get(leaf, leaf))
            if leaf not in data_dependent:
                conditions.append(condition)
            elif not holds(leaf, data_dependent):
                changes = leaf in depends_on_parameters
                value = _guard(value, condition, node.op, changes, private)
        return [value]

    return rebuilt(outputs, new, without_checks), conditions


def _hides_checks(op: HasInnerGraph) -> bool:
    return any(
        isinstance(node.op, CheckAndRaise)
        or (isinstance(node.op, HasInnerGraph) and _hides_checks(node.op))
        for node in op.fgraph.apply_nodes
    )


def _guard(
    value: Variable, condition: Variable, op: CheckAndRaise, changes: bool, private: bool
) -> Variable:
    """`value`, NaN where `condition` fails, entry by entry and never across records if private."""
    joins = condition.ndim == 0 or value.ndim == 0 or value.dtype not in ("float64", "float32")
    if private and joins:
        raise UnsupportedModel(
            f"the parameter check {op.msg!r} joins the data of several records, so one record "
            "affects the likelihood of all. Make each record's parameters depend on its own "
            "data only."
        )
    # The checked values may have core dimensions that the log-probability has summed out.
    while condition.ndim > value.ndim:
        condition = pt.all(condition, axis=-1)
    if not changes:  # a function of data alone, which is computed once, when graphs are frozen
        return value + pt.switch(condition, 0.0, np.nan)
    return pt.switch(condition, value, np.nan)


def _leaves(condition: Variable) -> Iterator[Variable]:
    """Parts of a conjunction: all of them hold everywhere if and only if `condition` does."""
    node = condition.owner
    if node is None or not _is_conjunction(node):
        yield condition
        return
    for part in joined(node) if isinstance(node.op, Join) else node.inputs:
        yield from _leaves(part)


def _is_conjunction(node: Apply) -> bool:
    op, x, (condition,) = node.op, node.inputs[0], node.outputs
    if isinstance(op, CAReduce):
        # Trailing axes that were reduced are trailing axes of the part. With others, the axis of the
        # records could be lost.
        axes = range(x.ndim) if op.axis is None else op.axis
        return isinstance(op.scalar_op, ps.AND) and min(axes, default=x.ndim) == condition.ndim
    if isinstance(op, Elemwise):
        return isinstance(op.scalar_op, ps.AND)
    if isinstance(op, DimShuffle):
        return 0 in (x.ndim, condition.ndim)
    return isinstance(op, ScalarFromTensor | TensorFromScalar | MakeVector | Join)


# --- what holds by construction -----------------------------------------------------------------


def holds(condition: Variable, data_dependent: Set[Variable] = frozenset()) -> bool:
    """Whether a condition provably holds for all parameters and data, by interval arithmetic.

    Data may be any numbers of their type, so the answer does not depend on their values.
    """
    if condition.owner is None or not isinstance(condition.owner.op, Elemwise):
        return False
    scalar_op, inputs = condition.owner.op.scalar_op, condition.owner.inputs
    if isinstance(scalar_op, ps.GE | ps.GT | ps.LE | ps.LT):
        low, high = (interval(v, data_dependent) for v in inputs)
        if isinstance(scalar_op, ps.GE | ps.GT):
            low, high = high, low
        strict = isinstance(scalar_op, ps.GT | ps.LT)
        if low[1] < high[0] or (not strict and low[1] <= high[0]):
            return True
    return _is_simplex_check(condition)


def _is_simplex_check(condition: Variable) -> bool:
    """Whether ``isclose(sum(softmax(x), -1), 1)`` is true with 1 in place of the sum."""
    sums = [v for v in ancestors([condition]) if _is_sum_of_softmax(v)]
    if not sums:
        return False
    ones: dict[Variable, Variable] = {
        v: pt.as_tensor(np.ones((1,) * v.ndim, dtype=v.dtype)) for v in sums
    }
    (rest,) = rebuilt([condition], ones)
    if any(v.owner is None and not isinstance(v, Constant) for v in ancestors([rest])):
        return False
    (value,) = evaluate_without_inputs([rest], "when a check of its parameters was evaluated")
    return bool(np.all(value))


def _is_sum_of_softmax(variable: Variable) -> bool:
    node = variable.owner
    if node is None or not isinstance(node.op, CAReduce):
        return False
    (x,) = node.inputs
    op, last = x.owner.op if x.owner is not None else None, x.ndim - 1
    is_sum = isinstance(node.op.scalar_op, ps.Add) and node.op.axis == (last,)
    return is_sum and isinstance(op, Softmax) and op.axis in (-1, last, (last,))


def interval(variable: Variable, data_dependent: Set[Variable] = frozenset()) -> Interval:
    """Bounds of all entries of a variable, both included."""
    if isinstance(variable, Constant) and variable not in data_dependent:
        data = np.asarray(variable.data)
        return (float(data.min()), float(data.max())) if data.size else REALS
    node = variable.owner
    if node is None:
        return _of_type(variable)
    for kinds, rule in _OF_OPERATIONS:
        if isinstance(node.op, kinds):
            return rule(node, lambda v: interval(v, data_dependent))
    return _of_type(variable) if variable.dtype == "bool" else REALS


def _of_type(variable: Variable) -> Interval:
    dtype = np.dtype(variable.dtype)
    if dtype.kind not in "biu":
        return REALS
    ends = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return float(ends[0]), float(ends[1])


def _of_search(node: Apply, _: Bounds) -> Interval:
    n = node.inputs[0].type.shape[0]
    return 0.0, np.inf if n is None else float(n)


def _of_place(node: Apply, _: Bounds) -> Interval:
    return 0.0, max(_n_reduced(node) - 1.0, 0.0)


def _of_reduction(node: Apply, of: Bounds) -> Interval:
    low, high = of(node.inputs[0])
    n = _n_reduced(node)
    if isinstance(node.op.scalar_op, ps.Add) and low >= 0 and n < np.inf:
        return n * low, n * high
    return REALS


def _n_reduced(node: Apply) -> float:
    (x,), axis = node.inputs, node.op.axis
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis)
    return math.prod(x.type.shape[k] or np.inf for k in axes)


def _of_elementwise(node: Apply, of: Bounds) -> Interval:
    (output,) = node.outputs
    rule = _RULES.get(type(node.op.scalar_op))
    if rule is None:
        return _of_type(output) if output.dtype == "bool" else REALS
    low, high = rule(*map(of, node.inputs))
    if np.dtype(output.dtype).kind in "iu":
        # Larger integers wrap around, and what is not a number becomes any integer.
        least, largest = _of_type(output)
        wraps = not (least <= low and high <= largest)
        return (
            (least, largest) if wraps or node.inputs[0].dtype.startswith("float") else (low, high)
        )
    return (-np.inf if np.isnan(low) else low), (np.inf if np.isnan(high) else high)


def _hull(*parts: Interval) -> Interval:
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _product(a: Interval, b: Interval) -> Interval:
    # Entries are finite, or the result is not a number: so 0 times infinity is 0 here.
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def _increasing(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def rule(a: Interval) -> Interval:
        with np.errstate(all="ignore"):
            return float(function(a[0])), float(function(a[1]))

    return rule


_RULES: dict[type, Callable[..., Interval]] = {
    ps.Add: lambda *parts: (sum(p[0] for p in parts), sum(p[1] for p in parts)),
    ps.Sub: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    ps.Mul: lambda *parts: reduce(_product, parts),
    ps.Neg: lambda a: (-a[1], -a[0]),
    ps.Cast: lambda a: a,
    ps.Identity: lambda a: a,
    ps.Exp: _increasing(np.exp),
    ps.Floor: _increasing(np.floor),
    psm.Sigmoid: lambda a: (0.0, 1.0),
    psm.Erfc: lambda a: (0.0, 2.0),
    ps.ScalarMaximum: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    ps.ScalarMinimum: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    ps.Clip: lambda a, lo, hi: (max(a[0], lo[0]), min(a[1], hi[1])),
    ps.Switch: lambda _, a, b: _hull(a, b),
}
_OF_OPERATIONS: tuple[tuple[Any, Callable[[Apply, Bounds], Interval]], ...] = (
    (Softmax, lambda node, of: (0.0, 1.0)),
    (_REARRANGEMENTS, lambda node, of: of(node.inputs[0])),
    (Join, lambda node, of: _hull(*map(of, joined(node)))),
    (MakeVector, lambda node, of: _hull(*map(of, node.inputs))),
    (SearchsortedOp, _of_search),
    (Argmax, _of_place),
    (CAReduce, _of_reduction),
    (Elemwise, _of_elementwise),
)
