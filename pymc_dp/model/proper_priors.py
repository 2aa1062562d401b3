"""Refusal of improper priors, for posteriors given noisy sums.

A released sum has bounded terms and noise of full support, so its likelihood is bounded below by a positive number, at all
parameters. The posterior's integral is at least that number times the prior's: under an improper prior it is improper, with
any number of records and any epsilon. (A sampler that pays for each draw has the likelihood of the records, which excludes.)

What is found, each a proof that the prior has no finite integral over a real line or half-line:

- ``pm.Flat`` and ``pm.HalfFlat``, also inside of another distribution (``init_dist=`` of a random walk);
- a log-density that does not depend on the variable, but by conditions (a ``pm.CustomDist`` that returns 0);
- a ``pm.ICAR`` whose graph has several parts: differences within parts and the sum of all leave the parts' levels free. With
  one part it is proper, by its zero-sum term.

A potential is not asked whether it makes such a prior proper: the density belongs into the distribution. Not found: improper
log-densities that are not constant (``-log(sigma)`` in a ``pm.CustomDist``, a potential that grows), and an ICAR whose free
scale has a heavy tail.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Second, Switch
from pytensor.tensor.elemwise import Elemwise
from scipy.sparse.csgraph import connected_components

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.graphs.data_variables import is_array_root, stored, value_inputs
from pymc_dp.model.graphs.exposed import in_sight
from pymc_dp.model.graphs.graph_arrays import is_custom, with_inner

_FLAT = tuple(type(each.rv_op) for each in (pm.Flat, pm.HalfFlat))
_INSTEAD = {
    pm.Flat: "pm.Normal(name, 0, s)",
    pm.HalfFlat: "pm.HalfNormal(name, s)",
}


def check_proper(model: pm.Model) -> None:
    """Raise UnsupportedModel if the prior of a free variable is known to be improper; no private array is read."""
    for rv in model.free_RVs:
        if found := _improper(model, rv):
            what, instead = found
            raise UnsupportedModel(
                f"the prior of {rv.name!r} is improper ({what}). Noisy scores exclude no value, so the posterior would be improper, "
                f"too, with any data. Give {rv.name!r} a proper prior, such as {instead}, where s is the largest size that you "
                "think possible; a wide one is fine. Nothing was accessed."
            )


def _improper(model: pm.Model, rv: Variable) -> tuple[str, str] | None:
    """What is improper, and what to write instead; None if nothing is known to be."""
    operations = {v.owner.op for v in with_inner([rv], {*model.free_RVs} - {rv}) if v.owner}
    for kind, instead in _INSTEAD.items():
        if any(isinstance(op, type(kind.rv_op)) for op in operations):
            instead = instead.replace("name", repr(rv.name))
            return f"it has a pm.{kind.__name__}", instead
    if isinstance(rv.owner.op, type(pm.ICAR.rv_op)) and (n := _parts(rv)) > 1:
        return f"the graph of its pm.ICAR has {n} parts", "one pm.ICAR for each part"
    if not is_custom([rv], {*model.free_RVs} - {rv}):
        return None
    with in_sight(set()):  # arrays are not evaluated
        (density,) = model.logp(vars=[rv], sum=False, jacobian=False)
        is_constant = model.rvs_to_values[rv] not in _entering(density)
    return ("its log-density is constant", f"pm.Normal({rv.name!r}, 0, s)") if is_constant else None


def _parts(rv: Variable) -> int:
    """Number of connected components of the graph of a pm.ICAR."""
    matrices = [
        v for v in rv.owner.inputs if is_array_root(v) and isinstance(v, Constant) and v.ndim == 2
    ]
    return connected_components(np.asarray(stored(matrices[0])))[0] if matrices else 1


def _entering(density: Variable) -> set[Variable]:
    """Variables on which a density depends, other than through conditions and shapes."""
    found: set[Variable] = set()
    stack = [density]
    while stack:
        variable = stack.pop()
        if variable in found:
            continue
        found.add(variable)
        if (node := variable.owner) is not None:
            scalar = node.op.scalar_op if isinstance(node.op, Elemwise) else None
            stack += node.inputs[1:] if isinstance(scalar, Switch | Second) else value_inputs(node)
    return found
