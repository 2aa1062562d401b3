"""Where a model's data enter its graphs.

PyMC does not mark data: a design matrix may be a ``pm.Data`` container, a NumPy array turned into
a constant, or part of a constant. What counts as data here is decided from the likelihood graph
(`data_roots`), and what depends on them by walking graphs upwards (`depends_on_data`).

A number computed from the data in NumPy and passed on as a scalar (``sigma=y.std()``) leaves no
trace in any graph and cannot be seen. Nor can what PyMC computes from constants by itself, before
there is a likelihood: only ``pm.Data`` keeps ``x - x.mean()`` in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pymc as pm
import pytensor

from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc, Join, Split
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import TensorType

from pymc_dp.model.withheld import evaluate

__all__ = ["data_roots", "depends_on_data"]

# Runs graphs with NumPy, without compiling anything: build-time checks evaluate a graph a few
# times, which never pays for a compilation.
INTERPRETED = Mode(linker="py", optimizer=None)


def is_array_root(variable: Variable) -> bool:
    """Whether a variable is a stored array (a constant or a shared variable) of tensor type."""
    return isinstance(variable, Constant | SharedVariable) and isinstance(variable.type, TensorType)


def stored(root: Variable) -> np.ndarray:
    """The array a root holds (not a copy: never write to it)."""
    if isinstance(root, Constant):
        return np.asarray(root.data)
    return np.asarray(root.get_value(borrow=True))


def likelihood_graphs(model: pm.Model) -> list[Variable]:
    """Elementwise log-likelihoods, one graph per observed variable, in their order."""
    if not model.observed_RVs:
        return []
    return model.logp(vars=list(model.observed_RVs), sum=False, jacobian=False)


def observed_arrays(model: pm.Model) -> list[np.ndarray]:
    """The values of the observed variables, in their order."""
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    symbolic = [value for value in values if not is_array_root(value)]
    evaluated = iter(
        evaluate(
            "when its observed data were computed",
            lambda: pytensor.function([], symbolic, mode=INTERPRETED)() if symbolic else (),
        )
    )
    return [stored(value) if is_array_root(value) else next(evaluated) for value in values]


def value_inputs(node: Apply) -> list[Variable]:
    """The inputs of a node that its values depend on, and not only its shape.

    How many rows there are is public under substitution. (Reading shapes as data would also take
    ``Split`` into two parts for an operation on a data set of two records.)
    """
    if isinstance(node.op, Shape | Shape_i):
        return _deciding_shape(node.inputs[0])
    if isinstance(node.op, Reshape | SpecifyShape | Alloc | Split):
        return node.inputs[:1]
    if isinstance(node.op, RandomVariable) or getattr(node.op, "extended_signature", None):
        size = node.op.size_param(node)
        return [v for v in node.inputs if v is not size]
    return node.inputs


def _deciding_shape(variable: Variable) -> list[Variable]:
    """Variables whose values decide about a shape, as those of ``unique`` and of masks do."""
    if variable.owner is None or None not in getattr(variable.type, "shape", (None,)):
        return []
    if isinstance(variable.owner.op, Elemwise | DimShuffle | Dot):
        return [v for each in variable.owner.inputs for v in _deciding_shape(each)]
    return [variable]


def upstream(
    starts: Iterable[Variable], stop: Callable[[Variable], bool] = lambda _: False
) -> set[Variable]:
    """Everything the values of `starts` depend on.

    Variables where `stop` holds are left out, and nothing is looked for behind them.
    """
    found: set[Variable] = set()
    stack = list(starts)
    while stack:
        variable = stack.pop()
        if variable in found or stop(variable):
            continue
        found.add(variable)
        if variable.owner is not None:
            stack.extend(value_inputs(variable.owner))
    return found


def downstream(outputs: Sequence[Variable], sources: Iterable[Variable]) -> set[Variable]:
    """The variables in the graphs of `outputs` whose value depends on one of `sources`."""
    reached = set(sources)
    for node in toposort(outputs):
        if not reached.isdisjoint(value_inputs(node)):
            reached.update(node.outputs)
    return reached


def row_axis(array: np.ndarray, n_rows: int) -> int | None:
    """The axis of `array` that runs over the rows: the first one of their number."""
    return next((k for k, length in enumerate(array.shape) if length == n_rows), None)


def sliced_roots(output: Variable, n_rows: int) -> set[Variable]:
    """Roots longer than the data, of which slices of `n_rows` rows are used: ``y[1:], y[:-1]``."""
    candidates: list[tuple[Variable, set[Variable]]] = []
    for node in toposort([output]):
        if not isinstance(node.op, Subtensor):
            continue
        same_rows = upstream(
            [node.inputs[0]],
            lambda v: (
                v.owner is not None and not isinstance(v.owner.op, Elemwise | DimShuffle | Join)
            ),
        )
        roots = {v for v in same_rows if is_array_root(v) and len_or_0(v) > n_rows}
        if roots and node.outputs[0].ndim:
            candidates.append((node.outputs[0], roots))
    # A slice of something else is no slice of a root: only graphs without parameters have a value.
    candidates = [(v, roots) for v, roots in candidates if _is_closed(v)]
    if not candidates:
        return set()
    arrays = pytensor.function([], [v for v, _ in candidates], mode=INTERPRETED)()
    hits = [roots for (_, roots), a in zip(candidates, arrays, strict=True) if len(a) == n_rows]
    return set().union(*hits)


def len_or_0(root: Variable) -> int:
    """Number of rows of a stored array; 0 if it is a scalar."""
    array = stored(root)
    return len(array) if array.ndim else 0


def _is_closed(variable: Variable) -> bool:
    return all(
        v.owner is not None or isinstance(v, Constant | SharedVariable)
        for v in ancestors([variable])
    )


def find_data_roots(model: pm.Model, graphs: Sequence[Variable]) -> list[Variable]:
    """`data_roots`, for log-likelihood graphs that are at hand."""
    roots: dict[Variable, None] = {}  # an ordered set
    containers, free = set(model.data_vars), set(model.free_RVs)
    for rv, graph, observed in zip(model.observed_RVs, graphs, observed_arrays(model), strict=True):
        value = model.rvs_to_values[rv]
        in_value = {v for v in upstream([value]) if is_array_root(v)}
        n_rows = len(observed) if observed.ndim else 0
        sliced = sliced_roots(graph, n_rows)
        # The model's own graph, too: PyMC evaluates what involves constants only (such as a centred
        # constant) on the way to the log-likelihood.
        for root in upstream([value, graph]) | upstream(rv.owner.inputs, free.__contains__):
            if not is_array_root(root) or (size := stored(root).size) == 0:
                continue
            if root is value or (
                size > 1
                and (
                    root in containers
                    or root in in_value
                    or root in sliced
                    or _has_rows(stored(root), n_rows)
                )
            ):
                roots[root] = None
    return list(roots)


def _has_rows(array: np.ndarray, n_rows: int) -> bool:
    """Whether an axis runs over the rows, and not all of these are the same."""
    axis = row_axis(array, n_rows) if n_rows > 1 else None
    if axis is None:
        return False
    rows = np.moveaxis(array, axis, 0)
    return not np.array_equal(rows, np.broadcast_to(rows[0], rows.shape))


def data_roots(model: pm.Model) -> list[Variable]:
    """The variables that hold the data of a model.

    Returns
    -------
    list of Variable
        Constants and shared variables: the values of the observed variables; every array in the
        graph of an observed variable's log-likelihood with an axis as long as that variable has
        rows (unless all its rows are the same); longer arrays of which it uses a slice of that
        length; and all ``pm.Data`` containers with more than one element it depends on.
    """
    return find_data_roots(model, likelihood_graphs(model))


def depends_on_data(model: pm.Model, variable: Variable) -> bool:
    """Whether a variable of a model would show something of its data.

    Free random variables are not looked behind: a parameter is not data, even where its prior
    wrongly depends on them. Besides the data roots themselves, a constant of two or more different
    elements counts as data if all of them occur in the data: such is ``X[:10]`` taken in NumPy.

    Parameters
    ----------
    model : pymc.Model
    variable : Variable
        For instance one of ``model.deterministics``.

    Returns
    -------
    bool
    """
    free = {*model.free_RVs, *model.value_vars}
    found = upstream([variable], free.__contains__)
    if not found.isdisjoint(model.observed_RVs):
        return True
    roots = data_roots(model)
    if not found.isdisjoint(roots):
        return True
    suspects = [stored(v) for v in found if is_array_root(v)]
    suspects = [a for a in suspects if a.size > 1 and (a != a.flat[0]).any()]
    if not suspects or not roots:
        return False
    known = np.unique(np.concatenate([np.ravel(stored(root)) for root in roots]))
    return any(bool(np.isin(a, known).all()) for a in suspects)
