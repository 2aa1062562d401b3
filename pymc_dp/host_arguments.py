"""Arguments that are PyMC's: what ``pm.sample`` would refuse only after something was spent, and starting points."""

from __future__ import annotations

import difflib
import inspect
import math
import multiprocessing
import warnings

from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import pymc as pm

from pymc.backends.base import BaseTrace
from pymc.backends.zarr import ZarrTrace
from pymc.initial_point import make_initial_point_fn
from pymc.util import get_random_generator
from pytensor.graph.basic import Variable
from rich.theme import Theme

from pymc_dp.arguments import as_integer

_NUTS = "it is for NUTS, which reads the data without privacy and is not used here: leave out"
_BUILT = "the step is compiled already: leave out, or give it to the step or to Simulator(model, compile_kwargs=...)"
_REDUCED = "the result is reduced to what may be published: leave out, and give coords= and dims= to the model"
_BY_PLAN = "sample() plans the start itself, and draws are free: leave out. Public values are guess=; a plan of another sampler is plan(step=...)"
#: Arguments that have no use here, of pm.sample and others that users know, with what to do.
_REFUSED = {
    "tune": "private steps do not adapt, so sample() sets tune=0: leave out",
    "callback": "sample() sets it, to the budget: leave out",
    "return_inferencedata": "the result is what release() returns: leave out",
    "budget": "sample() makes the budget from epsilon= and delta=: leave out, or give it to a step, or use sample(plan=plan(budget=budget, ...))",
    **dict.fromkeys(("share", "start", "max_draws"), _BY_PLAN),
    **dict.fromkeys(
        ("nuts_sampler", "nuts_sampler_kwargs", "init", "n_init", "jitter_max_retries", "target_accept", "nuts", "max_treedepth"),
        _NUTS,
    ),
    "compile_kwargs": _BUILT,
    "backend": _BUILT,
    "idata_kwargs": _REDUCED,
    "kwargs": "write further arguments by name: leave out",
}  # fmt: skip
#: Settings of private steps.
_OF_STEPS = {"clip_bound", "proposal", "noise_scale", "batch_size", "step_size", "n_leapfrog", "laziness"}  # fmt: skip
_FLAGS = ("quiet", "discard_tuned_samples", "compute_convergence_checks", "keep_warning_stat")
#: Of PyMC, for initial points.
_STRATEGIES = ("prior", "support_point")
_BARS = ("combined", "split", "combined+stats", "stats+combined", "split+stats", "stats+split")


def as_model(model: Any) -> pm.Model:
    """The model, or the one on the context stack; TypeError with advice if there is none."""
    if model is None:
        model = pm.Model.get_context(error_if_none=False)
        if model is None:
            raise TypeError(
                "There is no model: pass model=model, or call this within `with model:`."
            )
    if not isinstance(model, pm.Model):
        raise TypeError(
            f"model must be a pm.Model, got a {type(model).__name__}: pass model=model."
        )
    return model


def check_host_arguments(given: Mapping[str, Any], known: Iterable[str], model: pm.Model) -> None:
    """Raise for arguments that PyMC would refuse or misread when sampling begins; nothing is accessed."""
    if refused := sorted(set(given) & set(_REFUSED)):
        raise TypeError("; ".join(f"{name}: {_REFUSED[name]}" for name in refused) + ".")
    of_host = set(inspect.signature(pm.sample).parameters) - set(_REFUSED)
    if unknown := sorted(set(given) - of_host):
        similar = difflib.get_close_matches(unknown[0], {*of_host, *known}, 1)
        hint = f", or did you mean {similar[0]}=?" if similar else "."
        if _OF_STEPS & set(unknown):
            hint = " or give them to a step, sample(step=DPPenalty(budget=budget, ...))."
        raise TypeError(f"sample() has no argument {', '.join(unknown)}: leave out{hint}")
    for name in _FLAGS:
        if name in given and given[name] not in (True, False):
            raise TypeError(f"{name} must be True or False, got {given[name]!r}.")
    _check_bar(given.get("progressbar", True), given.get("progressbar_theme"))
    _check_processes(given.get("cores"), given.get("blas_cores"), given.get("mp_ctx"))
    if not isinstance(trace := given.get("trace"), BaseTrace | ZarrTrace | None):
        raise TypeError(f"trace must be one of PyMC's, got a {type(trace).__name__}: leave out.")
    check_seed(given.get("random_seed"))
    _check_names(given.get("var_names"), model)


def _check_bar(shown: Any, theme: Any) -> None:
    if not isinstance(shown, bool) and shown not in _BARS:
        raise ValueError(
            f"progressbar must be True, False or one of {', '.join(map(repr, _BARS))}, got {shown!r}."
        )
    if not isinstance(theme, Theme | str | None):
        raise TypeError(f"progressbar_theme must be a rich.theme.Theme, got a {type(theme).__name__}: leave out.")  # fmt: skip


def _check_processes(cores: Any, blas_cores: Any, context: Any) -> None:
    if cores is not None:
        as_integer("cores", cores, 1)
    if isinstance(blas_cores, str) and blas_cores != "auto":
        raise TypeError(f"blas_cores must be a whole number, 'auto' or None, got {blas_cores!r}.")
    if blas_cores is not None and blas_cores != "auto":
        as_integer("blas_cores", blas_cores, 1)
    methods = multiprocessing.get_all_start_methods()
    if context is not None and not isinstance(context, BaseContext) and context not in methods:
        raise ValueError(
            f"mp_ctx must be one of {', '.join(map(repr, methods))}, or of multiprocessing's contexts, got {context!r}: leave out for the default."
        )


def check_seed(seed: Any) -> None:
    """Raise ValueError unless both NumPy and PyMC accept this seed."""
    try:
        if not isinstance(seed, np.random.Generator):
            np.random.default_rng(seed)
        get_random_generator(seed)
        if isinstance(seed, np.ndarray) and seed.ndim:
            raise TypeError  # PyMC compares it with -1
    except (TypeError, ValueError):
        raise ValueError(
            f"random_seed must be a whole number, a list of them, or a Generator, got {seed!r}."
        ) from None


def check_memory(draws: int, chains: int, model: pm.Model) -> None:
    """Raise ValueError if the draws of all chains, which PyMC allocates at the start, do not fit into memory."""
    n_values = sum(math.prod(np.shape(x)) for x in model.initial_point(0).values())
    try:
        np.empty((chains, draws, n_values))
    except (MemoryError, ValueError):
        raise ValueError(
            f"draws={draws} of {n_values} parameter(s) in chains={chains} do not fit into memory: ask for fewer."
        ) from None


def _check_names(var_names: Any, model: pm.Model) -> None:
    """Raise unless these are distinct names of variables that PyMC samples."""
    if var_names is None:
        return
    if isinstance(var_names, str) or not isinstance(var_names, Sequence):
        raise TypeError(f"var_names must be a list of names, got {var_names!r}: put it in a list.")
    _check_known("var_names", var_names, [v.name for v in model.unobserved_RVs])
    if not len(var_names) or len(set(var_names)) < len(var_names):
        raise ValueError(
            f"var_names must be distinct names, at least one, got {list(var_names)}: leave out for all."
        )


def _check_known(what: str, names: Iterable[Any], known: Sequence[str]) -> None:
    if unknown := sorted({str(getattr(v, "name", v)) for v in names} - set(known)):
        raise ValueError(
            f"The model has no variables {', '.join(unknown)}, which are in {what}: it has {', '.join(known)}."
        )


def checked_initvals(
    initvals: Any, chains: int, model: pm.Model
) -> list[dict[str, np.ndarray]] | None:
    """Initial points of the chains, one for all or one for each; None if PyMC chooses them.

    TypeError or ValueError if these are no values of the model's parameters; the message names the parameter.
    """
    if initvals is None:
        return None
    points = [initvals] if isinstance(initvals, Mapping) else initvals
    if isinstance(points, str) or not isinstance(points, Sequence):
        points = [points]
    for point in points:
        _check_mapping("initvals", point)
    if not isinstance(initvals, Mapping) and len(points) != chains:
        raise ValueError(
            f"initvals has {len(points)} dict(s) for {chains} chain(s): give one dict for all of them, or one for each."
        )
    return [initial_point(point, model, what="initvals") for point in points]


def _check_mapping(what: str, values: Any) -> None:
    if not isinstance(values, Mapping | None):
        raise TypeError(
            f"{what} must be a dict of values by name of parameter, such as {{'beta': 0.0}}, got a {type(values).__name__}."
        )


def initial_point(
    values: Mapping[str, Any] | None, model: pm.Model, *, what: str
) -> dict[str, np.ndarray]:
    """PyMC's initial point on the unconstrained scale, with public values in place of its own.

    TypeError or ValueError if they are no values of the model's parameters; `what` is the name of the argument.
    """
    _check_mapping(what, values)
    given = {name: value for name, value in (values or {}).items() if value is not None}
    names = {v.name: v for v in model.value_vars} | {v.name: v for v in model.free_RVs}
    _check_known(what, given, list(names))
    shapes = model.eval_rv_shapes()
    for name, value in given.items():
        name = getattr(name, "name", name)
        if isinstance(value, Variable) or (isinstance(value, str) and value in _STRATEGIES):
            continue
        array = _as_numbers(value)
        if array is None or np.isnan(array).any():
            raise ValueError(
                f"{what} of {name!r} must be numbers, and none of them NaN, got {value!r}."
            )
        if array.shape != (shape := tuple(map(int, shapes[name]))):
            raise ValueError(
                f"{what} of {name!r} has shape {array.shape}, but this parameter has shape {shape}."
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTensor warns if BLAS is missing
        return make_initial_point_fn(model=model, overrides=given, return_transformed=True)(0)


def _as_numbers(value: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value)
        return array.astype(float) if array.dtype.kind in "biuf" else None
    except (TypeError, ValueError):  # ragged lists
        return None
