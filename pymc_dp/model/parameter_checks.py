"""What becomes of the parameter checks inside PyMC's log-probability graphs.

PyMC wraps log-probabilities in assertions (``sigma > 0``) that hold for *all* entries at once and
raise where one does not. In a private likelihood they must go: an exception that depends on a
record is a leak, and ``all`` makes every record's likelihood depend on every other record. Each
condition is therefore taken apart, down to what is tested entry by entry, and

- what involves no data is public and moves to the prior, which is ``-inf`` where it fails;
- what involves data and holds by construction (``0 <= sigmoid(.) <= 1``) is dropped;
- what is left is applied to each record alone, whose log-likelihood becomes NaN where it fails.
  NaN poisons whatever is computed from it, as the assertion would have; `RecordLikelihood` turns it
  to ``-inf`` at the very end.

Dropped conditions hold in real arithmetic. Where a parameter underflows (``exp(-800)`` is 0), PyMC
would reject the point and this likelihood takes the limit, or ``-inf`` where there is none.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence, Set
from functools import reduce

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors, toposort
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
from pymc_dp.model.roots import INTERPRETED
from pymc_dp.model.withheld import evaluate

__all__ = ["INCREMENTS", "SELECTIONS", "interval", "strip_checks"]

TINY = np.nextafter(0.0, 1.0)  # the lower end of an interval that excludes 0
# AdvancedSubtensor1 and AdvancedIncSubtensor1 exist in PyTensor 2 only.
SELECTIONS = (
    subtensor.Subtensor
    | subtensor.AdvancedSubtensor
    | getattr(subtensor, "AdvancedSubtensor1", subtensor.Subtensor)
)
INCREMENTS = subtensor.AdvancedIncSubtensor | getattr(
    subtensor, "AdvancedIncSubtensor1", subtensor.AdvancedIncSubtensor
)
Interval = tuple[float, float]
REALS: Interval = (-np.inf, np.inf)


def strip_checks(
    outputs: Sequence[Variable],
    data_dependent: set[Variable],
    parameters: Sequence[Variable],
    private: bool = True,
) -> tuple[list[Variable], list[Variable]]:
    """Take the parameter checks out of log-probability graphs.

    Parameters
    ----------
    outputs : sequence of Variable
        Elementwise log-probabilities.
    data_dependent : set of Variable
        The variables in their graphs that depend on data, data included.
    parameters : sequence of Variable
        The value variables of the free parameters.
    private : bool
        Refuse checks that join the data of several records. Otherwise these make everything NaN
        where they fail.

    Returns
    -------
    stripped : list of Variable
        The same graphs without checks. Entries whose own, data-dependent checks fail are NaN.
    conditions : list of Variable
        Boolean tensors without data among their ancestors, all entries of which must hold.

    Raises
    ------
    UnsupportedModel
        If a check joins the data of several records, or hides inside a loop or an inner graph.
    """
    replaced: dict[Variable, Variable] = {}
    conditions: list[Variable] = []
    depends_on_parameters = _reached_from(outputs, parameters)
    for node in toposort(outputs):
        inputs = [replaced.get(v, v) for v in node.inputs]
        if isinstance(node.op, CheckAndRaise):
            value = inputs[0]
            for leaf in (leaf for check in node.inputs[1:] for leaf in _leaves(check)):
                condition = replaced.get(leaf, leaf)
                if leaf not in data_dependent:
                    conditions.append(condition)
                elif not holds(leaf, data_dependent):
                    changes = leaf in depends_on_parameters
                    value = _guard(value, condition, node.op, changes, private)
            replaced[node.outputs[0]] = value
        elif isinstance(node.op, HasInnerGraph) and _hides_checks(node.op):
            raise UnsupportedModel(
                f"a likelihood has parameter checks inside {type(node.op).__name__}, where they "
                "cannot be made private. Compute it without a loop over random variables or "
                "pymc.logp inside, or give pm.CustomDist a logp function without checks."
            )
        elif any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            new = node.clone_with_new_inputs(inputs, strict=False)
            replaced.update(zip(node.outputs, new.outputs, strict=True))
    return [replaced.get(v, v) for v in outputs], conditions


def _reached_from(outputs: Sequence[Variable], sources: Sequence[Variable]) -> set[Variable]:
    reached = set(sources)
    for node in toposort(outputs):
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return reached


def _evaluate(variable: Variable) -> np.ndarray:
    # Privately, and a result that is not shown: whether a check on data alone can be left out.
    return evaluate(
        "when a check of its parameters was evaluated",
        lambda: pytensor.function([], variable, mode=INTERPRETED)(),
    )


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
            f"the parameter check {op.msg!r} joins the data of several records, so that one record "
            "decides about the likelihood of all. Make each record's parameters depend on its own "
            "data only."
        )
    # The checked values may have core dimensions that the log-probability has summed over.
    while condition.ndim > value.ndim:
        condition = pt.all(condition, axis=-1)
    if not changes:  # depends on data alone: the switch is computed once
        return value + pt.switch(condition, 0.0, np.nan)
    return pt.switch(condition, value, np.nan)


def _leaves(condition: Variable) -> Iterator[Variable]:
    """Take a conjunction apart: all of these hold everywhere iff `condition` does."""
    if condition.owner is None:
        yield condition
        return
    op, inputs = condition.owner.op, condition.owner.inputs
    if isinstance(op, CAReduce) and isinstance(op.scalar_op, ps.AND):
        # Reduced trailing axes come back as trailing axes; others would hide the record axis.
        n_kept = inputs[0].ndim if op.axis is None else min(op.axis, default=inputs[0].ndim)
        conjunction = op.axis is None or n_kept == condition.ndim
    elif isinstance(op, Elemwise):
        conjunction = isinstance(op.scalar_op, ps.AND)
    elif isinstance(op, DimShuffle):
        conjunction = inputs[0].ndim == 0 or condition.ndim == 0
    else:
        conjunction = isinstance(op, ScalarFromTensor | TensorFromScalar | MakeVector | Join)
    if conjunction:
        for part in inputs[1:] if isinstance(op, Join) else inputs:
            yield from _leaves(part)
    elif isinstance(condition.type, ps.ScalarType):
        yield pt.tensor_from_scalar(condition)
    else:
        yield condition


# --- what holds by construction -----------------------------------------------------------------


def holds(condition: Variable, data_dependent: Set[Variable] = frozenset()) -> bool:
    """Whether a condition is true whatever the parameters and the data are.

    Sound but far from complete: intervals are carried through the common elementwise operations.
    Data count as any number of their type, so that the answer does not depend on their values.
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
    """``isclose(sum(softmax(x), -1), 1)``: true if the sum is replaced by 1."""
    sums = [
        v
        for v in ancestors([condition])
        if v.owner is not None
        and isinstance(v.owner.op, CAReduce)
        and isinstance(v.owner.op.scalar_op, ps.Add)
        and _is_softmax(v.owner.inputs[0])
        and v.owner.op.axis == (v.owner.inputs[0].ndim - 1,)
    ]
    if not sums:
        return False
    replaced: dict[Variable, Variable] = {
        v: pt.as_tensor(np.ones((1,) * v.ndim, dtype=v.dtype)) for v in sums
    }
    for node in toposort([condition], blockers=sums):
        if node.outputs[0] in replaced:
            continue
        new = node.clone_with_new_inputs([replaced.get(v, v) for v in node.inputs], strict=False)
        replaced.update(zip(node.outputs, new.outputs, strict=True))
    rest = replaced[condition]
    if any(v.owner is None and not isinstance(v, Constant) for v in ancestors([rest])):
        return False
    return bool(np.all(_evaluate(rest)))


def _is_softmax(variable: Variable) -> bool:
    op = variable.owner.op if variable.owner is not None else None
    return isinstance(op, Softmax) and op.axis in (-1, variable.ndim - 1, (variable.ndim - 1,))


def interval(variable: Variable, data_dependent: Set[Variable] = frozenset()) -> Interval:
    """Bounds of all entries of a variable; ``TINY`` stands for "greater than 0"."""
    if isinstance(variable, Constant) and variable not in data_dependent:
        data = np.asarray(variable.data)
        return (float(data.min()), float(data.max())) if data.size else REALS
    if variable.owner is None:
        kind = np.dtype(variable.dtype).kind
        return {"b": (0.0, 1.0), "u": (0.0, np.inf)}.get(kind, REALS)
    op, inputs = variable.owner.op, variable.owner.inputs
    if isinstance(op, Softmax):
        return 0.0, 1.0
    if isinstance(
        op,
        DimShuffle
        | SELECTIONS
        | Alloc
        | Reshape
        | SpecifyShape
        | CheckAndRaise
        | ScalarFromTensor
        | TensorFromScalar,
    ):
        return interval(inputs[0], data_dependent)
    if isinstance(op, Join | MakeVector):
        parts = inputs[1:] if isinstance(op, Join) else inputs
        return _hull([interval(v, data_dependent) for v in parts])
    if isinstance(op, SearchsortedOp):
        return 0.0, np.inf if (n := inputs[0].type.shape[0]) is None else float(n)
    if isinstance(op, Argmax | CAReduce):
        axes = range(inputs[0].ndim) if op.axis is None else np.atleast_1d(op.axis)
        n = math.prod(inputs[0].type.shape[k] or np.inf for k in axes)
        if isinstance(op, Argmax):
            return 0.0, max(n - 1.0, 0.0)
        parts = interval(inputs[0], data_dependent)
        if isinstance(op.scalar_op, ps.Add) and 0 <= parts[0] and n < np.inf:
            return n * parts[0], n * parts[1]
        return REALS
    if variable.dtype == "bool":
        return 0.0, 1.0
    if isinstance(op, Elemwise):
        rule = _RULES.get(type(op.scalar_op))
        return rule(*(interval(v, data_dependent) for v in inputs)) if rule else REALS
    return REALS


def _hull(parts: Sequence[Interval]) -> Interval:
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _add(*parts: Interval) -> Interval:
    return _clean(sum(p[0] for p in parts), sum(p[1] for p in parts))


def _sub(a: Interval, b: Interval) -> Interval:
    return _clean(a[0] - b[1], a[1] - b[0])


def _mul(*parts: Interval) -> Interval:
    def product(a: Interval, b: Interval) -> Interval:
        if min(a[0], b[0]) < 0:
            return (
                REALS
                if max(*map(abs, a), *map(abs, b)) == np.inf
                else _hull([(x * y, x * y) for x in a for y in b])
            )
        low = max(a[0] * b[0], TINY) if a[0] > 0 and b[0] > 0 else 0.0
        return low, np.inf if np.inf in (a[1], b[1]) else a[1] * b[1]

    return reduce(product, parts)


def _div(a: Interval, b: Interval) -> Interval:
    # Of quotients only the sign is needed: the scale of a precision, odds, rates.
    if a[0] < 0 or b[0] <= 0:
        return REALS
    return (TINY if a[0] > 0 else 0.0), np.inf


def _pow(a: Interval, b: Interval) -> Interval:
    if a[0] > 0:
        return TINY, np.inf
    even = b[0] == b[1] and b[0] % 2 == 0
    return (0.0, np.inf) if even or a[0] == 0 else REALS


def _clean(low: float, high: float) -> Interval:
    return (-np.inf if np.isnan(low) else low), (np.inf if np.isnan(high) else high)


def _increasing(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def rule(a: Interval) -> Interval:
        with np.errstate(all="ignore"):
            return _clean(float(function(a[0])), float(function(a[1])))

    return rule


_RULES: dict[type, Callable[..., Interval]] = {
    ps.Add: _add,
    ps.Sub: _sub,
    ps.Mul: _mul,
    ps.TrueDiv: _div,
    ps.Reciprocal: lambda a: _div((1.0, 1.0), a),
    ps.Neg: lambda a: (-a[1], -a[0]),
    ps.Cast: lambda a: a,
    ps.Identity: lambda a: a,
    ps.Exp: lambda a: (TINY, np.inf),
    psm.Softplus: lambda a: (TINY, np.inf),
    psm.Sigmoid: lambda a: (TINY, 1.0),
    psm.Erfc: lambda a: (0.0, 2.0),
    ps.Pow: _pow,
    ps.Sqr: lambda a: (0.0, np.inf),
    ps.Abs: lambda a: (max(a[0], 0.0), np.inf),
    ps.Sqrt: lambda a: (TINY if a[0] > 0 else 0.0, np.inf),
    ps.Floor: _increasing(np.floor),
    ps.Ceil: _increasing(np.ceil),
    ps.Log1p: _increasing(np.log1p),
    ps.Expm1: lambda a: (TINY if a[0] > 0 else 0.0 if a[0] == 0 else -1.0, np.inf),
    ps.ScalarMaximum: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    ps.ScalarMinimum: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    ps.Clip: lambda a, lo, hi: (max(a[0], lo[0]), min(a[1], hi[1])),
    ps.Switch: lambda _, a, b: _hull([a, b]),
}
