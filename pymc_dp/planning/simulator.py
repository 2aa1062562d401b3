"""A model compiled once, and records drawn from it: what planning and a private start work with."""

from __future__ import annotations

import copy
import warnings

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pymc as pm

from pytensor.compile.mode import Mode

from pymc_dp.arguments import as_float, as_integer, check_labels
from pymc_dp.data import Records, Shards, Sites
from pymc_dp.data.columns import width_of
from pymc_dp.data_versions import check_data_are_those, note_data
from pymc_dp.display import Shown, in_short
from pymc_dp.host_arguments import as_model, initial_point
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.blocked_likelihood import BlockedLikelihood
from pymc_dp.model.graphs.data_variables import (
    is_array_root,
    observed_values,
    stored,
    upstream,
)
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.row_positions import check_neighbours
from pymc_dp.model.simulation import SimulatedRecords
from pymc_dp.planning.interest import Interest
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms.mechanism import Adjacency
from pymc_dp.progress import note
from pymc_dp.queries.ranges import Ranges
from pymc_dp.queries.stand_in import StandIn, uniform_stand_in

#: Where records are read in blocks: rows that are simulated, least and most, and numbers in these. The information
#: of 100 000 rows with 20 covariates is accurate to 1.4 %, which is the part of the reference's error that stays.
_LEAST_ROWS, _MOST_ROWS, _MOST_NUMBERS = 20_000, 100_000, 2**21
#: Public values of parameters by name, "prior", or None for PyMC's initial point.
Guess = Mapping[str, Any] | str | None


class Simulator(Shown):
    """A model compiled once: the log-likelihood of its records, and records drawn from it.

    Planning, private starts and noisy scores use simulated records, which cost no privacy. A
    simulator that is passed to several of them, and its `likelihood` to a step, avoids further
    compilations.

    Parameters
    ----------
    model : pm.Model, optional
        The model; by default the one on the context stack.
    data : Records, Shards or Sites, optional
        Records that are read in blocks, here, on a cluster or at several sites: columns of the model's ``pm.Data``, by
        name, see :class:`~pymc_dp.model.BlockedLikelihood`.
    covariates : "public", pm.Model or Ranges, optional
        How records are simulated if the model has covariates (arrays with a row per record that
        are not observed variables), or `records` is given. ``"public"``: the model's own
        covariates, and `records`, may be used, and under add/remove its number of rows. A model:
        a stand-in with the same parameters and public or invented data of any number of rows. Its
        observed values are used only if they cannot be drawn (a ``pm.CustomDist`` without
        ``random``). Ranges of all covariates, which must be ``pm.Data`` with these names: rows of
        the model are made up, uniformly, until :func:`~pymc_dp.private_scores` releases what they
        are like (:func:`~pymc_dp.private_stand_in`). There is no default for models with
        covariates; others need none.
    records : array of int, or dict of str to such arrays, optional
        Privacy unit that each row belongs to, an integer label; by default each row is one.
    stand_in_records : array of int, or dict of str to such arrays, optional
        The same for the rows of a stand-in; required if `records` and a stand-in are given.
    public : sequence of str or array
        Arrays of the model without data of records, see :class:`~pymc_dp.model.RecordLikelihood`.
    n_records : int, optional
        Public number of records; that of the model by default. Under add/remove the number is
        private: then give a public guess here, and a stand-in, unless the covariates are public.
    temperature : float
        Power of the likelihood, in (0, 1].
    compile_kwargs : dict, optional
        Arguments for ``pytensor.function``; Numba by default.

    Attributes
    ----------
    model : pm.Model
        The model that was compiled.
    covariates, public, temperature
        Values of the arguments with these names.
    likelihood : RecordLikelihood or BlockedLikelihood
        Of the private records: for ``likelihood=`` of a step.
    simulated : SimulatedRecords
        Of the model, or of its stand-in.
    n_records : int
        Public number of privacy units.

    Raises
    ------
    ValueError
        If an argument is out of its range, if the model has covariates and `covariates` is not
        given, or if the stand-in has other parameters.
    UnsupportedModel
        If the model has no likelihood per record, or its records cannot be drawn.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> y = np.random.default_rng(1).normal(30.0, 2.0, size=5000)
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 100)
    ...     _ = pm.Normal("y", mu, 2.0, observed=y)
    ...     simulator = dp.Simulator()
    >>> theta = simulator.position({"mu": 20.0})
    >>> simulator.simulated.draw(theta, np.random.default_rng(2))[0].shape
    (5000,)
    """

    def __init__(
        self,
        model: pm.Model | None = None,
        *,
        data: Records | Shards | Sites | None = None,
        covariates: str | pm.Model | Ranges | None = None,
        records: Any = None,
        stand_in_records: Any = None,
        public: Sequence[Any] = (),
        n_records: int | None = None,
        temperature: float = 1.0,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not 0 < as_float(temperature) <= 1:
            raise ValueError(f"temperature must lie in (0, 1], got {temperature!r}.")
        if n_records is not None:
            as_integer("n_records", n_records, 1)
        _check_covariates(covariates)
        check_labels(records)
        check_labels(stand_in_records)
        self.public, self.temperature = tuple(public), temperature
        #: Of private covariates whose stand-in is made up, with the private positions of all values, and what was
        #: released about them.
        self.ranges = covariates if isinstance(covariates, Ranges) else None
        self.stand_in: StandIn | None = None
        self._latest: Simulator | None = None
        self.likelihood: Likelihood
        note("compiling the likelihood of the records")
        self.model = as_model(model)
        some_rows: Any = nullcontext()
        if data is not None:
            _check_blocks(records, self.ranges)
            self.likelihood = blocks = BlockedLikelihood(
                self.model, data, public=public, compile_kwargs=compile_kwargs
            )
            most = min(max(_LEAST_ROWS, _MOST_NUMBERS // width_of(data.layout)), _MOST_ROWS)
            is_public = isinstance(covariates, str)
            some_rows = blocks.some_rows(most, np.random.default_rng(0), public=is_public)
        else:
            if self.ranges is not None:
                self.places = _places(self.model, self.ranges, records)
            self.likelihood = RecordLikelihood(
                self.model, records=records, public=public, compile_kwargs=compile_kwargs
            )
            note_data(self.likelihood, self.model)
        note("compiling simulated records")
        if self.ranges is not None:
            self._make_up(uniform_stand_in(self.ranges, len(self.places)))
        elif isinstance(covariates, pm.Model):
            self.covariates: Any = covariates
            _check_stand_in(self.model, covariates, records, stand_in_records)
            self.simulated = SimulatedRecords(
                covariates, records=stand_in_records, public_covariates=True, public_data=True
            )
        else:
            self.covariates, is_public = covariates, covariates == "public"
            with some_rows:
                self.simulated = SimulatedRecords(
                    self.model, records=records, public=public, public_covariates=is_public
                )
        #: With all simulated records, if this one keeps some, which released moments have chosen.
        self.whole: Simulator = self
        #: What was last computed with all of them: releases, moments, and a simulator with rows that have these.
        self.latest: Any = None
        #: Functions of the parameters of which the posterior is to be narrow; by default all parameters.
        self.interest: Interest | None = None
        self._given_number = n_records
        self.n_records = n_records or self.likelihood.n_records

    def __repr__(self) -> str:
        names = in_short([*self.likelihood.slices])
        covariates = self.covariates if isinstance(self.covariates, str | None) else "stand-in"
        return f"Simulator(n_records={self.n_records}, parameters={names}, covariates={covariates})"

    @property
    def has_public_covariates(self) -> bool:
        """Whether the model's own covariates are used as they are, so that only outcomes are protected."""
        return isinstance(self.covariates, str) and self.covariates == "public"

    @property
    def has_real_rows(self) -> bool:
        """Whether the simulated records have the covariates of the real ones, all of them, or there are none."""
        is_real = self.covariates is None or self.has_public_covariates
        return is_real and self.simulated.n_records == self.likelihood.n_records == self.n_records

    def keeping(self, rows: np.ndarray) -> Simulator:
        """The same with some of the simulated records only, by number, which released moments have chosen."""
        subset = copy.copy(self)
        subset.simulated = self.simulated.keeping(rows)
        return subset

    def interested_in(self, interest: Any) -> Simulator:
        """The same for parameters of interest: names of parameters and Deterministics, or expressions of these."""
        if interest is None:
            return self
        new = copy.copy(self)
        new.whole, new.latest = new, None
        new.interest = Interest(self.model, interest, self.public, self.has_public_covariates)
        return new

    def standing_in(self, stand_in: StandIn | None) -> Simulator:
        """The same with the rows of a stand-in that was released, in place of made-up ones, and with its errors.

        Without ranges it has the errors if its rows are those of the stand-in; else it is itself.
        """
        if stand_in is None or self.stand_in is stand_in:
            return self
        if self.ranges is None and (stand_in.error is None or not self._has_rows_of(stand_in)):
            return self
        if self._latest is None or self._latest.stand_in is not stand_in:
            self._latest = new = copy.copy(self.whole)
            new.whole, new.stand_in, new.latest = new, stand_in, None
            if self.ranges is not None:
                new._make_up(stand_in)
            else:
                new.simulated = copy.copy(new.simulated)
                new.simulated.error = stand_in.error
        return self._latest

    def _has_rows_of(self, stand_in: StandIn) -> bool:
        """Whether the covariates of simulated records are the rows of a stand-in."""
        model = self.covariates if isinstance(self.covariates, pm.Model) else self.model
        data = {v.name: v.get_value() for v in model.data_vars}
        return self.covariates is not None and stand_in.has_rows(data)

    def _make_up(self, stand_in: StandIn) -> None:
        """Simulate with the rows of a stand-in. All other arrays must be public: observed values are not used."""
        rows = {
            name: np.asarray(row, self.model[name].dtype) for name, row in stand_in.rows.items()
        }
        self.covariates = pm.do(self.model, rows)
        # pm.do changes the order of the variables, but parameters are vectors in the order of the model.
        order = [rv.name for rv in self.model.basic_RVs]
        for variables in (self.covariates.free_RVs, self.covariates.observed_RVs):
            variables.sort(key=lambda rv: order.index(rv.name))
        self.simulated = SimulatedRecords(self.covariates, public=[*self.public, *rows])
        self.simulated.error = stand_in.error

    def check_budget(self, budget: PrivacyBudget) -> None:
        """Raise if a plan or a term of a record would use the number of records, and that is private."""
        if self.ranges is not None and budget.adjacency is Adjacency.ADD_REMOVE:
            raise ValueError(
                "Under add/remove the number of records is private, and covariates=Ranges(...) makes up as many rows: make a stand-in with "
                "private_stand_in(..., n_records=), on a budget of its own, and pass covariates=stand_in_model."
            )
        check_number_is_public(budget, self.covariates, self._given_number)
        check_neighbours(self.likelihood, budget.adjacency)

    def check_data(self) -> None:
        """Raise ValueError if ``pm.set_data`` has replaced data of the model after it was compiled."""
        check_data_are_those(self.likelihood, self.model)

    def incomplete_arrays(self) -> list[str]:
        """Public covariates with values that are missing or infinite; none if they are private."""
        if self.covariates is None:
            return []
        model = self.model if self.covariates == "public" else self.covariates
        arrays = upstream([v for rv in model.observed_RVs for v in rv.owner.inputs])
        found = {a: stored(a) for a in arrays - {*observed_values(model)} if is_array_root(a)}
        return [
            f"{a.name or 'an array'} of shape {x.shape}"
            for a, x in found.items()
            if x.dtype.kind == "f" and not np.isfinite(x).all()
        ]

    def position(self, guess: Guess = None, random_seed: Any = None) -> np.ndarray:
        """Parameters as a vector, on the unconstrained scale, shape ``(n_dim,)``.

        Parameters
        ----------
        guess : dict of str to array or "prior", optional
            Values by name, as in ``initvals``, in place of those of PyMC's initial point; or a draw
            from the prior.
        random_seed : int or Generator, optional
            For a draw from the prior.
        """
        if isinstance(guess, str):
            if guess != "prior":
                raise ValueError(f"guess must be a dict of values by name of parameter, or 'prior', got {guess!r}.")  # fmt: skip
            (theta,) = self.prior_draws(1, np.random.default_rng(random_seed))
        else:
            theta = self.likelihood.ravel(initial_point(guess, self.model, what="guess"))
        if not (np.isfinite(theta).all() and np.isfinite(self.likelihood.log_prior(theta))):
            raise ValueError(f"guess is where the prior is zero: {self.likelihood.unravel(theta)}.")
        return theta

    def prior_draws(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws from the prior, on the unconstrained scale, shape ``(n, n_dim)``."""
        transforms = self.model.rvs_to_transforms
        values = [rv if transforms[rv] is None else transforms[rv].forward(rv, *rv.owner.inputs) for rv in self.model.free_RVs]  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTensor warns if BLAS is missing
            drawn = pm.draw(values, n, random_seed=int(rng.integers(2**30)), mode=Mode("py", None))
        return np.hstack([np.reshape(x, (n, -1)) for x in drawn]).astype(float)


def check_is_simulator(simulator: Any) -> None:
    """Raise TypeError unless this is a simulator."""
    if not isinstance(simulator, Simulator):
        raise TypeError(
            f"simulator must be a Simulator, got a {type(simulator).__name__}: pass a model as model=."
        )


def check_number_is_public(
    budget: PrivacyBudget, covariates: str | pm.Model | None, n_records: int | None
) -> None:
    """Raise ValueError if the number of records is used under add/remove, where it is private."""
    guessed = isinstance(covariates, pm.Model) and n_records is not None
    is_public = guessed or (covariates is not None and not isinstance(covariates, pm.Model))
    if budget.adjacency is Adjacency.ADD_REMOVE and not is_public:
        raise ValueError(
            "under add/remove the number of records is private: pass n_records=, a public guess, and covariates=stand_in_model, or "
            'covariates="public" if the model\'s number of rows is public.'
        )


def _check_covariates(covariates: Any) -> None:
    """Raise unless the argument is "public", ranges, a stand-in or None."""
    if covariates is None or isinstance(covariates, pm.Model | Ranges):
        return
    if not (isinstance(covariates, str) and covariates == "public"):
        # An array may be private.
        got = repr(covariates) if isinstance(covariates, str) else f"a {type(covariates).__name__}"
        raise ValueError(
            f'covariates must be "public" (everybody may know the covariates), Ranges(...) (only their ranges are known), or covariates=stand_in_model, '
            f"a model of the same parameters with covariates that are public or invented, got {got}."
        )


def _check_blocks(records: Any, ranges: Ranges | None) -> None:
    """Raise ValueError for arguments that blocks of records do not support."""
    if records is not None:
        raise ValueError(
            "With data=, each row is a record: leave out records=, and give each person one row."
        )
    if ranges is not None:
        raise ValueError(
            "covariates=Ranges(...) needs a model with pm.Data in memory. With data=, make a stand-in by private_stand_in() from a "
            'sample, and pass covariates=stand_in_model, or covariates="public".'
        )


def _places(model: pm.Model, ranges: Ranges, records: Any) -> np.ndarray:
    """Private positions of the covariates in their ranges."""
    if records is not None:
        raise ValueError(
            'With records=, covariates must be "public" or a stand-in: Ranges describe single rows.'
        )
    data = {v.name: v for v in model.data_vars}
    if unknown := sorted(set(ranges) - set(data)):
        raise ValueError(
            f"Ranges describe {', '.join(unknown)}, but the model's pm.Data are {', '.join(map(str, data)) or 'none'}: make covariates "
            "pm.Data(name, array), with the names of the ranges."
        )
    return ranges.places({name: data[name].get_value() for name in ranges})


def _check_stand_in(
    model: pm.Model, stand_in: pm.Model, records: Any, stand_in_records: Any
) -> None:
    """Raise unless a stand-in has the parameters of the model, and privacy units if the model has them."""
    if records is not None and stand_in_records is None:
        raise ValueError(
            "with records= and a stand-in, pass stand_in_records= too: the unit that each of its rows belongs to."
        )
    shapes = []
    for m in (model, stand_in):
        point = initial_point(None, m, what="guess")
        shapes.append([(v.name, np.shape(point[v.name])) for v in m.value_vars])
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"the stand-in (covariates=) must have the parameters of the model, {shapes[0]}, but has {shapes[1]} (values on "
            "the unconstrained scale, with their shapes, in this order)."
        )
