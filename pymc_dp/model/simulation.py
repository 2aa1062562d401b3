"""Records drawn from a model, their log-likelihoods and gradients: for plans that use no private data."""

from __future__ import annotations

import copy
import math

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pymc.distributions.censored import CensoredRV
from pymc.logprob.utils import replace_rvs_by_values
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace

from pymc_dp.errors import UnsupportedModel
from pymc_dp.model.compiled_model import CompiledModel
from pymc_dp.model.graphs.captured import check_functions
from pymc_dp.model.graphs.compiling import quiet_compilers
from pymc_dp.model.graphs.data_variables import (
    evaluate_without_inputs,
    observed_arrays,
    observed_values,
    upstream,
)
from pymc_dp.model.graphs.drawing import Drawing
from pymc_dp.model.graphs.exposed import Exposed, expose
from pymc_dp.model.graphs.public_arrays import PublicArrays
from pymc_dp.model.stand_in_error import StandInError
from pymc_dp.model.sums.batch_likelihood import BatchLikelihood, Gathered
from pymc_dp.model.sums.gradients import Block, RecordGradients
from pymc_dp.model.withheld import evaluate, no_log_of_rewrites

#: Most outcomes that are enumerated, the probability of those that are left out, and the rows for which it is computed.
_MOST_OUTCOMES, _REST, _N_ROWS = 100, 1e-9, 1000


class SimulatedRecords(CompiledModel):
    """Data sets drawn from a model: as many records as the model has, with the same covariates.

    The observed values are not used, and may differ. `records` and `public` are those of
    :class:`~pymc_dp.model.RecordLikelihood`. `public_covariates` permits use of `records`, and of the model's arrays
    with rows that are not observed; `public_data` permits use of the observed values, which are the data set if the
    model cannot be drawn from. `has_parent`, shape ``(n_dim,)``, marks parameters whose prior depends on other
    parameters.

    Raises ValueError if covariates or `records` are used without being public; UnsupportedModel if an observed variable
    cannot be drawn from, its data enter the parameters of another, or a bound of a ``pm.Censored`` is finite for some
    rows only.

    A bound that is finite exactly for the censored, ``upper=np.where(censored, t, np.inf)``, carries the outcome: as a
    public covariate it is not protected, and simulated events are never censored. So it is refused, although that
    depends on its values: here they are public. `RecordLikelihood` accepts such a bound, as it protects whole rows, and
    simulates nothing.
    """

    def __init__(
        self,
        model: pm.Model,
        *,
        records: np.ndarray | Mapping[str, np.ndarray] | None = None,
        public: Sequence[Any] = (),
        public_covariates: bool = False,
        public_data: bool = False,
    ) -> None:
        if records is not None and not public_covariates:
            raise ValueError(
                "records= shows which rows belong together, and a plan may use that only if it is public: pass "
                'covariates="public", or covariates=stand_in_model, a model with data that are public or invented.'
            )
        labels = self._assign_records(model, records)
        factors = [v.name for v in (*model.free_RVs, *model.potentials)]
        declared = PublicArrays(model, factors if public_data else public)
        where = "when its log-likelihood was derived"
        if not public_data:
            for rv in model.observed_RVs:
                check_functions(
                    f"{rv.name!r}", [rv], declared, {len(a) for a in observed_arrays(model)}
                )
        with no_log_of_rewrites():  # the model may be that of the private data
            exposed = evaluate(where, expose, model, declared, private=not public_data)
        derived = self._derive(model, exposed)
        self.has_parent = np.repeat(
            _have_parents(model), [math.prod(shape) for shape, _ in self._layout]
        )
        arrays = observed_arrays(model)
        self._data = arrays if public_data else None
        self._shared = [pytensor.shared(np.zeros_like(a), shape=a.shape) for a in arrays]
        rows, log_prior = derived.of_theta(dict(zip(exposed.values, self._shared, strict=True)))
        draws = graph_replace(_draws(model), derived.parts, strict=False)
        in_rows = set(exposed.private) & upstream(rows, set(self._shared))
        in_draws = [v for v in exposed.arrays_of(draws) if v not in declared]
        _check_public([*in_rows, *in_draws], exposed, model, public_covariates)
        _check_bounds(model)
        #: The data set of the compiled functions, in a list that subsets share.
        self._loaded: list[Sequence[np.ndarray] | None] = [None]
        self._n_all = self.n_records
        self._kept: np.ndarray | None = None
        #: That of the covariates, of a stand-in that was released.
        self.error: StandInError | None = None
        #: Whether a record is one row of each observed variable.
        self._one_each = all(np.array_equal(each, np.arange(self._n_all)) for each in labels)
        with quiet_compilers():  # Numba compiles at the first call
            self._drawing: Drawing | None = Drawing([derived.theta], draws)
            self._load(self._first_draw())
            self._compile(derived.theta, rows, log_prior, labels, changing=self._shared)
            two = np.zeros(2, dtype=np.int64)
            self._log_prior(self._start)
            self._batch.all_records(self._start)
            self._batch([self._start], two)
            self._gradients.each(self._start, two)

    def _first_draw(self) -> Sequence[np.ndarray]:
        """A data set at the initial point; the observed one if none can be drawn and it is public."""
        try:
            return self.draw(self._start, np.random.default_rng(0))
        except NotImplementedError as error:
            if self._data is None:
                raise UnsupportedModel(
                    f"records cannot be drawn from the model ({error}): give its pm.CustomDist a random=, or "
                    "pass covariates=stand_in_model, a model of the same parameters with public or invented data."
                ) from None
            self._drawing = None
            return self._data

    def _load(self, data: Sequence[np.ndarray]) -> None:
        """Use these data in the compiled functions."""
        if data is self._loaded[0]:
            return
        for variable, array in zip(self._shared, data, strict=True):
            variable.set_value(np.array(array, variable.dtype, order="C"), borrow=True)
        if self._loaded[0] is not None:
            self._batch.refresh()
            self._gradients.refresh()
        self._loaded[0] = data

    @property
    def can_simulate(self) -> bool:
        """Whether records can be drawn from the model."""
        return self._drawing is not None

    def keeping(self, records: np.ndarray) -> SimulatedRecords:
        """A copy with only these records, by number; data sets still have the rows of all records."""
        subset = copy.copy(self)
        subset._kept = records if self._kept is None else self._kept[records]
        subset.n_records = len(records)
        if self.error is not None:
            subset.error = self.error.keeping(records)
        return subset

    def _numbers(self, index: np.ndarray | None) -> np.ndarray | None:
        """Numbers, among all records, of the kept records or of these of them."""
        if self._kept is None:
            return index
        return self._kept if index is None else self._kept[index]

    @property
    def rows(self) -> np.ndarray:
        """Numbers of the kept records in a data set."""
        return np.arange(self._n_all) if self._kept is None else self._kept

    def some(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Random subsample of `n` record numbers; all of them if there are fewer."""
        return np.sort(rng.permutation(self.n_records)[:n])

    def draw(self, theta: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw a data set given the parameters: values of the observed variables, in order."""
        if self._drawing is None:
            assert self._data is not None
            return self._data
        drawn = self._drawing(self._drawing.generators(rng), [self._checked(theta)])
        return [np.array(y, v.dtype, order="C") for y, v in zip(drawn, self._shared, strict=True)]

    def standard_numbers(self, n: int, rng: np.random.Generator) -> list[list[np.ndarray]] | None:
        """Stratified random numbers of `n` data sets for :meth:`draw_from`; None unless outcomes are a smooth function of such numbers."""
        if self._drawing is None or not self._one_each or any(v.dtype[0] != "f" for v in self._shared):  # fmt: skip
            return None
        return self._drawing.numbers(n, rng)

    def draw_from(self, theta: np.ndarray, numbers: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The data set that random numbers give at these parameters."""
        assert self._drawing is not None
        return [*self._drawing.of(numbers, [self._checked(theta)])]

    def outcomes(self, positions: Sequence[np.ndarray]) -> list[list[np.ndarray]] | None:
        """Data sets whose outcomes are all equal, one for each outcome that is possible at some position.

        None unless a record is one whole number, and few values have all but a part of 1e-9 of the probability.
        """
        variable, is_one = self._shared[0], self._one_each and len(self._shared) == 1
        if self._drawing is None or not is_one or variable.ndim != 1 or variable.type.numpy_dtype.kind not in "biu":  # fmt: skip
            return None
        drawn = [self.draw(theta, np.random.default_rng(0))[0][self.rows] for theta in positions]
        first, last = min(int(y.min()) for y in drawn), max(int(y.max()) for y in drawn)
        # Some rows, and those with the most extreme outcomes.
        extreme = [f(y) for y in drawn for f in (np.argmin, np.argmax)]
        some = np.unique(np.append(self.some(_N_ROWS, np.random.default_rng(0)), extreme))
        possible: dict[int, list[np.ndarray]] = {}

        def probability(k: int, theta: np.ndarray) -> np.ndarray:
            data = [np.broadcast_to(np.asarray(k, variable.dtype), self._n_all)]
            with np.errstate(all="ignore"):
                found = np.exp(np.nan_to_num(self.logp(theta, data, some), nan=-np.inf))
            if found.any():
                possible[k] = data
            return found

        for theta in positions:
            if last - first >= _MOST_OUTCOMES:
                return None
            total = np.sum([probability(k, theta) for k in range(first, last + 1)], axis=0)
            while (total < 1 - _REST).any() and variable.dtype != "bool":
                if last - first >= _MOST_OUTCOMES:
                    return None
                first, last = first - 1, last + 1
                total += probability(first, theta) + probability(last, theta)
        return [possible[k] for k in sorted(possible)]

    def logp(
        self, theta: np.ndarray, data: Sequence[np.ndarray], index: np.ndarray | None = None
    ) -> np.ndarray:
        """Log-likelihoods of the records of a data set, all or by number, shape ``(n,)``."""
        self._load(data)
        theta, index = self._checked(theta), self._numbers(index)
        return self._batch.all_records(theta) if index is None else self._batch([theta], index)[0]

    def gradients(
        self,
        theta: np.ndarray,
        data: Sequence[np.ndarray],
        index: np.ndarray | None = None,
        directions: np.ndarray | None = None,
    ) -> np.ndarray:
        """Gradients of these log-likelihoods, shape ``(n, n_dim)``, or ``(n, k)`` along `k` directions."""
        self._load(data)
        return self._gradients.each(self._checked(theta), self._numbers(index), directions)

    def pooled(self, sets: Iterable[tuple[Sequence[np.ndarray], np.ndarray]]) -> PooledRecords:
        """Records of several data sets together, by number."""
        length = self._gradients.chunk
        chunks: list[list[Any]] = []
        room = 0
        for data, index in sets:
            self._load(data)
            for begin in range(0, len(index), length):
                few = self._numbers(index[begin : begin + length])
                assert few is not None
                if len(few) > room:
                    chunks.append([])
                    room = length
                chunks[-1].append((self._batch.gather(few), self._gradients.gather(few)))
                room -= len(few)
        joined = []
        for chunk in chunks:
            of_batch, of_gradients = zip(*chunk, strict=True)
            joined.append((self._batch.join(of_batch), self._gradients.join(of_gradients)))
        return PooledRecords(self._batch, self._gradients, joined, self._shared)

    def curvature(self, theta: np.ndarray, data: Sequence[np.ndarray]) -> np.ndarray:
        """Minus the Hessian of the total log-likelihood, by differences of gradients, shape ``(n_dim, n_dim)``."""
        self._load(data)
        block = Block(self._batch, self._gradients)
        return -differences(lambda t: block.plain_gradients(t, None), self._checked(theta))


class PooledRecords:
    """Records of several data sets in one compiled call, which takes little longer for some hundred than for one."""

    def __init__(
        self,
        batch: BatchLikelihood,
        gradients: RecordGradients,
        chunks: Sequence[tuple[list[Gathered], list[Gathered]]],
        outcomes: Sequence[Variable],
    ) -> None:
        self._batch, self._gradients, self._chunks = batch, gradients, chunks
        self._outcomes = outcomes

    def with_outcomes(self, data: Sequence[np.ndarray]) -> PooledRecords:
        """The same rows with other outcomes; each record must be one row."""
        new, end, chunks = dict(zip(self._outcomes, data, strict=True)), 0, []
        for of_batch, of_gradients in self._chunks:
            begin, end = end, end + len(of_batch[0].rows[2])
            part = {v: array[begin:end] for v, array in new.items()}
            chunks.append((self._batch.replaced(of_batch, part), self._gradients.replaced(of_gradients, part)))  # fmt: skip
        return PooledRecords(self._batch, self._gradients, chunks, self._outcomes)

    def logp(self, theta: np.ndarray) -> np.ndarray:
        """Log-likelihood of each record, data set by data set, shape ``(n,)``."""
        theta = np.array(theta, dtype=np.float64, order="C")  # see `CompiledModel._checked`
        return np.concatenate([self._batch.of([theta], rows)[0] for rows, _ in self._chunks])

    def gradients(self, theta: np.ndarray) -> np.ndarray:
        """Their gradients, shape ``(n, n_dim)``."""
        theta = np.array(theta, dtype=np.float64, order="C")
        return np.concatenate([self._gradients.of(theta, rows) for _, rows in self._chunks])


def jacobian(function: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> np.ndarray:
    """Derivatives of a vector, a row for each of its entries, by central differences."""
    steps = np.diag(1e-4 * (1 + np.abs(theta)))
    return np.array([(function(theta + h) - function(theta - h)) / (2 * h.sum()) for h in steps]).T


def differences(gradient: Callable[[np.ndarray], np.ndarray], theta: np.ndarray) -> np.ndarray:
    """Symmetric Hessian, by central differences of a gradient."""
    hessian = jacobian(gradient, theta)
    return (hessian + hessian.T) / 2


def _have_parents(model: pm.Model) -> list[bool]:
    free = set(model.free_RVs)
    return [not free.isdisjoint(upstream(rv.owner.inputs)) for rv in model.free_RVs]


def _draws(model: pm.Model) -> list[Variable]:
    """The observed variables as random variables, given values of the free variables."""
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    return replace_rvs_by_values(
        list(model.observed_RVs), rvs_to_values=free, rvs_to_transforms=model.rvs_to_transforms
    )


def _check_public(
    left: Sequence[Variable], exposed: Exposed, model: pm.Model, public_covariates: bool
) -> None:
    """Raise if the graphs hold private arrays other than the replaced observations."""
    # Containers, never values: an outcome that is equal to a public covariate is no reason to refuse.
    inside = upstream([*exposed.values, *observed_values(model)])
    if not inside.isdisjoint(left):
        raise UnsupportedModel(
            "what is observed also enters the parameters of an observed variable, where it cannot be drawn anew: "
            "write these with the random variable itself instead of its data (and keep covariates in another "
            "pm.Data than what is observed), or pass covariates=stand_in_model, a model of the same parameters that is "
            "written so."
        )
    containers = {v.name for v in model.data_vars}
    unknown = [exposed.names[v] for v in left if v in exposed.names and v.name not in containers]
    if unknown and public_covariates and len(model.observed_RVs) > 1:
        raise UnsupportedModel(
            f"{unknown[0]} is not in a pm.Data, and the model has several outcomes: whether it is one of these, which are protected, only a "
            'container shows. Write pm.Data("x", x) for the covariates of a model with several outcomes, or declare them with public=[x].'
        )
    if left and not public_covariates:
        names = sorted({v.name for v in left} - {None}) or [f"{len(left)} without a name"]
        ranges = "=(low, high), ".join(names if names[0].isidentifier() else ["x", "z"])
        raise ValueError(
            f"the model has covariates ({', '.join(names)}). If they are private, put each in a pm.Data and pass their public ranges, "
            f'covariates=dp.Ranges({ranges}=(low, high)); if everybody may know them, covariates="public"; or '
            "covariates=stand_in_model, a model of the same parameters with covariates that are public or invented."
        )


def _check_bounds(model: pm.Model) -> None:
    """Refuse bounds of pm.Censored, public here, that are finite for some rows and infinite for others."""
    for rv in model.observed_RVs:
        if not isinstance(rv.owner.op, CensoredRV):
            continue
        for name, bound in zip(("lower", "upper"), rv.owner.inputs[1:3], strict=True):
            if not set(model.basic_RVs).isdisjoint(upstream([bound])):
                continue
            (values,) = evaluate_without_inputs([bound], "when a bound was computed")
            if 0 < np.isinf(values).sum() < values.size:
                raise UnsupportedModel(
                    f"{rv.name!r} is censored at a bound ({name}=) that is finite for some rows and infinite for others, as with "
                    "np.where(censored, t, np.inf): it shows who was censored, and simulated events are never censored. Give everybody's own "
                    f"limit, whether it was reached or not: {name}=follow_up, the end of follow-up of each row."
                )
