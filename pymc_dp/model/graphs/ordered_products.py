"""Products and solutions of linear equations that are the same for a row in any place, among any others.

BLAS adds the products of a row in an order that depends on the place of the row in its array, on the
length of the array and on the number of threads, and so may round the last bit differently. The
operations of this module add them in the same order for each row, and with the same roundings: the
compiler has no permission to regroup sums, or to round a product and a sum once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor import as_tensor_variable, tensor
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot

from pymc_dp.model.graphs.data_variables import downstream, rebuilt

LANES = 4  # sums of a product with few columns; as many numbers as a vector of AVX2 holds
FEW = 8  # columns that `product` computes together; below, lanes are faster
FLOATS = {"float64", "float32"}
VERSION = 2  # of the compiled code, which PyTensor keeps on disk

#: Floats are added and multiplied as written, for the same results in vector instructions and outside.
_strict = numba.njit(nogil=True, error_model="numpy")


def in_fixed_order(output: Variable, rows: Sequence[Variable]) -> Variable:
    """The graph with operations of this module, where products or solutions depend on `rows`."""
    dependent = downstream([output], rows)

    def rule(node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
        if dependent.isdisjoint(node.inputs) or node.outputs[0].type.dtype not in FLOATS:
            return None
        core = node.op.core_op if isinstance(node.op, Blockwise) else node.op
        x: Any = inputs[0]
        y: Any = inputs[-1]
        if isinstance(core, BatchedDot):
            return [Blockwise(OrderedDot(lanes=False))(x, y)]
        if isinstance(core, Dot):
            return [_ordered_dot(x, y, node.inputs[1] not in dependent)]
        if type(core).__name__ == "SolveTriangular":  # its module depends on the version
            solve = Blockwise(OrderedSolve(core.lower, core.unit_diagonal))
            return [solve(x, y) if core.b_ndim == 2 else solve(x, y[..., None])[..., 0]]
        if "SolveBase" in {kind.__name__ for kind in type(core).__mro__}:
            return _solved_one_by_one(node, inputs)
        return None

    return rebuilt([output], {}, rule)[0]


def _ordered_dot(x: Variable, y: Variable, rows_first: bool) -> Variable:
    if not rows_first and x.ndim == y.ndim == 2 and _is_transposed(y):
        return _ordered_dot(y.T, x.T, True).T  # row by row, as they are in memory
    few = rows_first and (y.type.shape[-1] or FEW) < FEW
    op = OrderedDot(lanes=few)
    return op(x, y) if x.ndim == y.ndim == 2 else Blockwise(op)(x, y)


def _is_transposed(x: Variable) -> bool:
    return (
        x.owner is not None
        and isinstance(x.owner.op, DimShuffle)
        and x.owner.op.new_order == (1, 0)
    )


def _solved_one_by_one(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
    """A batch of systems with one column each, in place of one system with a column for each row."""
    matrix, right = inputs
    core = getattr(node.op, "core_op", node.op)
    if matrix.ndim > 2 or right.ndim != 2 or core.b_ndim == 1:
        return None
    op = node.op if isinstance(node.op, Blockwise) else Blockwise(node.op)
    return [op(matrix[None], right.T[:, :, None])[:, :, 0].T]


class OrderedDot(Op):
    """Matrix product whose entries are sums of products in a fixed order.

    With `lanes` an entry is the sum of `LANES` sums, of every fourth product, plus the last products one by one.
    Otherwise products are added one by one.
    """

    __props__ = ("lanes",)
    gufunc_signature = "(m,n),(n,p)->(m,p)"

    def __init__(self, *, lanes: bool) -> None:
        self.lanes = lanes

    def make_node(self, x: Any, y: Any) -> Apply:
        x, y = as_tensor_variable(x), as_tensor_variable(y)
        dtype = np.result_type(x.dtype, y.dtype).name
        shape = x.type.shape[0], y.type.shape[1]
        return Apply(self, [x.astype(dtype), y.astype(dtype)], [tensor(dtype=dtype, shape=shape)])

    def infer_shape(self, *arguments: Any) -> list[tuple]:
        x, y = arguments[-1]  # in PyTensor 2, the graph comes first
        return [(x[0], y[1])]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list]) -> None:
        x, y = inputs
        n, width = x.shape
        total = np.zeros((n, y.shape[1]), x.dtype)
        full = width - width % LANES if self.lanes else 0
        if full:
            parts = np.zeros((LANES, *total.shape), x.dtype)
            for j in range(full):
                parts[j % LANES] += x[:, j, None] * y[j]
            total = (parts[0] + parts[1]) + (parts[2] + parts[3])
        for j in range(full, width):
            total += x[:, j, None] * y[j]
        output_storage[0][0] = total


class OrderedSolve(Op):
    """Solution of triangular systems with one matrix by substitution, column by column."""

    __props__ = ("lower", "unit_diagonal")
    gufunc_signature = "(m,m),(m,n)->(m,n)"

    def __init__(self, lower: bool, unit_diagonal: bool) -> None:
        self.lower, self.unit_diagonal = lower, unit_diagonal

    def make_node(self, a: Any, b: Any) -> Apply:
        a, b = as_tensor_variable(a), as_tensor_variable(b)
        dtype = np.result_type(a.dtype, b.dtype).name
        output = tensor(dtype=dtype, shape=b.type.shape)
        return Apply(self, [a.astype(dtype), b.astype(dtype)], [output])

    def infer_shape(self, *arguments: Any) -> list[tuple]:
        return [arguments[-1][1]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list]) -> None:
        a, b = inputs
        with np.errstate(all="ignore"):
            output_storage[0][0] = substitute.py_func(a, b, self.lower, self.unit_diagonal)


@register_funcify_default_op_cache_key(OrderedDot)
def _(op: OrderedDot, node: Apply, **_: Any) -> tuple[Callable, int]:
    return (product_of_rows if op.lanes else product), VERSION


@register_funcify_default_op_cache_key(OrderedSolve)
def _(op: OrderedSolve, node: Apply, **_: Any) -> tuple[Callable, int]:
    lower, unit_diagonal = op.lower, op.unit_diagonal

    @_strict
    def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return substitute(a, b, lower, unit_diagonal)

    return solve, VERSION


@_strict
def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Matrix product; the products of an entry are added one by one."""
    n, width = x.shape[0], y.shape[1]
    x, padded = np.ascontiguousarray(x), np.zeros((y.shape[0], -(-width // FEW) * FEW), y.dtype)
    padded[:, :width] = y
    total, sums = np.empty((n, width), dtype=x.dtype), np.empty(padded.shape[1], dtype=x.dtype)
    for i in range(n):
        for first in range(0, width, FEW):
            _columns(x[i], padded, first, sums)
        total[i] = sums[:width]
    return total


@_strict
def product_of_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Matrix product with few columns; the products of an entry are added in lanes, see `OrderedDot`."""
    x, columns = np.ascontiguousarray(x), np.ascontiguousarray(y.T)
    n, width = x.shape
    total = np.empty((n, len(columns)), dtype=x.dtype)
    for i in range(n):
        row = x[i]
        for k in range(len(columns)):
            column = columns[k]
            entry = _in_lanes(row, column)
            for j in range(width - width % LANES, width):
                entry += row[j] * column[j]
            total[i, k] = entry
    return total


@intrinsic
def _in_lanes(_: Any, x: Any, y: Any) -> Any:
    """Sum of products of contiguous vectors, without the last ones: Numba would not vectorise it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y = (
            make_array(t)(context, builder, v)
            for t, v in zip(signature.args, arguments, strict=True)
        )
        length = builder.extract_value(x.shape, 0)
        size = ir.Constant(length.type, LANES)
        number = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(number, LANES)
        sums = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
        align = context.get_abi_sizeof(number)

        def load(array: Any, place: Any) -> Any:
            pointer = builder.bitcast(builder.gep(array.data, [place]), vector.as_pointer())
            return builder.load(pointer, align=align)

        with cgutils.for_range(builder, builder.udiv(length, size)) as loop:
            place = builder.mul(loop.index, size)
            products = builder.fmul(load(x, place), load(y, place))
            builder.store(builder.fadd(builder.load(sums), products), sums)
        total = builder.load(sums)
        parts = [
            builder.extract_element(total, ir.Constant(ir.IntType(32), k)) for k in range(LANES)
        ]
        while len(parts) > 1:
            parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return x.dtype(x, y), code


@intrinsic
def _columns(_: Any, x: Any, y: Any, first: Any, sums: Any) -> Any:
    """Set `FEW` numbers, from `first`, to products of a vector with columns of a matrix; all contiguous."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y, sums = (
            make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 1, 3)
        )
        length, stride = builder.extract_value(x.shape, 0), builder.extract_value(y.shape, 1)
        number = context.get_value_type(signature.args[0].dtype)
        vector, align = ir.VectorType(number, FEW), context.get_abi_sizeof(number)

        def pointer(array: Any, place: Any) -> Any:
            return builder.bitcast(builder.gep(array.data, [place]), vector.as_pointer())

        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * FEW))
        with cgutils.for_range(builder, length) as loop:
            row = builder.add(builder.mul(loop.index, stride), arguments[2])
            factor: Any = ir.Constant(vector, ir.Undefined)
            value = builder.load(builder.gep(x.data, [loop.index]))
            for k in range(FEW):
                factor = builder.insert_element(factor, value, ir.Constant(ir.IntType(32), k))
            products = builder.fmul(factor, builder.load(pointer(y, row), align=align))
            builder.store(builder.fadd(builder.load(total), products), total)
        builder.store(builder.load(total), pointer(sums, arguments[2]), align=align)
        return context.get_dummy_value()

    return types.void(x, y, types.int64, sums), code


@_strict
def substitute(a: np.ndarray, b: np.ndarray, lower: bool, unit_diagonal: bool) -> np.ndarray:
    """Solve a triangular system for each column of `b`; NaN if a diagonal entry is 0, as in LAPACK."""
    m, n = b.shape
    x = np.empty((m, n), dtype=b.dtype)
    x[:, :] = b
    for step in range(m):
        i = step if lower else m - 1 - step
        for other in range(step):
            k = other if lower else m - 1 - other
            x[i] -= a[i, k] * x[k]
        if not unit_diagonal:
            x[i] /= a[i, i] if a[i, i] != 0.0 else np.nan
    return x
