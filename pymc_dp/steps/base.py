"""The base class of all private steps: it claims, charges, counts and stops."""

from __future__ import annotations

import logging
import traceback

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from pymc.util import get_random_generator

from pymc_dp.arguments import check_labels
from pymc_dp.data_versions import check_data_are_those, note_data
from pymc_dp.errors import ModelError, PrivacyBudgetExhausted
from pymc_dp.host_arguments import as_model
from pymc_dp.model.base_likelihood import Likelihood
from pymc_dp.model.identity import model_of, model_token
from pymc_dp.model.likelihood import RecordLikelihood
from pymc_dp.model.row_positions import check_neighbours
from pymc_dp.model.withheld import without_words
from pymc_dp.privacy.budget.allocation import Allocation
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.claims import StepAccess
from pymc_dp.privacy.budget.draws import TOKEN, new_token
from pymc_dp.privacy.mechanisms.mechanism import Adjacency, Mechanism
from pymc_dp.privacy.randomness.bits import BitSource, OperatingSystemBits, SeededBits
from pymc_dp.steps.options import (
    check_likelihood,
    check_nothing_is_missing,
    describe_options,
    value_vars,
)
from pymc_dp.steps.pymc_adapter import CALLS_WITHOUT_CALLBACK, PyMCStep

_log = logging.getLogger("pymc.dp")

#: Data accesses, as pairs of a mechanism and how often it is used.
Accesses = Sequence[tuple[Mechanism, int]]


class _AllocationUsedUp(Exception):
    """The chain's allocation does not pay for the next iteration; nothing was accessed."""


class DPStep(PyMCStep):
    """Base class of all private steps: claims before the first access, charges, counts, stops.

    A subclass states in :meth:`mechanisms` every data access of one iteration, writes
    :meth:`transition`, which calls :meth:`charge` before it touches the data, and calls
    :meth:`register` at the end of its constructor.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default. Others need a step on the same budget.
    budget : PrivacyBudget or None
        What may be spent. None, which must be given explicitly, runs without privacy.
    records : array_like of int, or dict of such arrays, optional
        Privacy unit of each row: an integer label, the same for all rows of a record. One array for all observed
        variables, or one for each by name. By default every row is a record.
    public : sequence of str or array, optional
        Arrays of the model that hold no data of records, by name or as they are
        (:class:`~pymc_dp.model.RecordLikelihood`). The report lists them.
    reproducible : bool
        Draw decisions from PyMC's ``random_seed`` instead of the operating system's randomness.
        This breaks the guarantee, and the report states it: for tests and public data.
    model : pm.Model, optional
        The model, by default the one on the context stack.
    likelihood : RecordLikelihood or BlockedLikelihood, optional
        The log-likelihood of this same model if it is compiled already, for instance by a
        :class:`~pymc_dp.Simulator`: `records`, `public` and `compile_kwargs` are then not used.
    blocked : bool
        True: all variables are updated together. PyMC passes it; False is refused.
    rng : numpy.random.Generator or int, optional
        Public randomness of proposals; PyMC sets it when a chain begins.
    compile_kwargs : dict, optional
        For ``pytensor.function``; Numba by default.

    Raises
    ------
    TypeError
        If an argument is missing or unknown, or `budget` is not a PrivacyBudget.
    ValueError
        If ``blocked=False``, or `likelihood` is of another model or shows its errors.

    Examples
    --------
    The chain stays where it is, and each iteration is charged for a noisy sum:

    >>> class Still(dp.steps.DPStep):
    ...     def __init__(self, vars=None, *, budget, **options):
    ...         super().__init__(vars, budget=budget, **options)
    ...         self.register()
    ...
    ...     def mechanisms(self):
    ...         return ((dp.privacy.Gaussian(50.0), 1),)
    ...
    ...     def transition(self, theta):
    ...         self.charge(self.mechanisms())  # then the data may be accessed
    ...         return theta, False, 0.0
    """

    name = "dp_step"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list]]] = {
        "accepted": (bool, []),
        "acceptance_rate": (np.float64, []),
        "step_distance": (np.float64, []),
        "epsilon_spent": (np.float64, []),
        "exhausted": (bool, []),
        TOKEN: (np.int64, []),
    }
    #: Class method: for each argument the values that :func:`~pymc_dp.plan` tries; None for a class without a planner.
    plan: ClassVar[Any] = None
    #: Public attributes that the charge rests on: all that were set before :meth:`register`.
    _frozen: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments that a step passes on in its signature and its docstring."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            describe_options(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise for missing arguments, with their names and where to get them."""
        check_nothing_is_missing(cls, kwargs)
        kwargs["model"] = as_model(kwargs.get("model"))
        return super().__new__(cls, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes that would invalidate the registered cost."""
        if name in self._frozen:
            raise AttributeError(
                f"{name} cannot be changed: the cost of this step is registered with its budget. Build a new step."
            )
        super().__setattr__(name, value)

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        budget: PrivacyBudget | None,
        records: Any = None,
        public: Sequence[Any] = (),
        reproducible: bool = False,
        model: Any = None,
        likelihood: Likelihood | None = None,
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
        **unknown: Any,
    ):
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no argument {', '.join(unknown)}: leave out."
            )
        if not isinstance(budget, PrivacyBudget | None):
            raise TypeError(
                f"budget must be a PrivacyBudget (or None for a run without privacy), got {type(budget).__name__}."
            )
        if not blocked:
            raise ValueError(
                "A private step updates its variables together; build one step per variable to update them one by one."
            )
        model = as_model(model)
        check_labels(records)
        if likelihood is not None:
            check_likelihood(likelihood, model, budget)
        variables = model.value_vars if vars is None else value_vars(vars, model)
        self.vars = list(variables)
        self.blocked = True
        self.rng = get_random_generator(rng)
        self.budget = budget
        self.reproducible = bool(reproducible)
        self.likelihood: Likelihood = likelihood or RecordLikelihood(
            model, records=records, public=public, private=budget is not None, compile_kwargs=compile_kwargs,
        )  # fmt: skip
        if budget is not None:
            check_neighbours(self.likelihood, budget.adjacency)
        if likelihood is None:
            note_data(self.likelihood, model)
        self._public = tuple(public)
        names = tuple(v.name for v in self.vars)
        self.label = f"{type(self).__name__}[{', '.join(names)}]"
        everything = np.arange(self.likelihood.n_dim)
        #: Positions of the step's variables in theta.
        self.part = np.concatenate([everything[self.likelihood.slices[n]] for n in names])
        self._model_token = model_token(model)
        #: Public number on each draw, which identifies the budget for release(); 0 without a budget.
        self.token = 0 if budget is None else new_token(budget.id)
        self._bits: BitSource = OperatingSystemBits()
        self._reset_chain()

    # ------------------------------------------------------------------ what a subclass uses

    def register(self) -> None:
        """Declare the cost of an iteration to the budget; public attributes are fixed from then on."""
        public = (name for name in vars(self) if not name.startswith("_"))
        self._frozen = frozenset(public) - {"rng"}
        if self.budget is None:
            return
        self.budget.register(
            StepAccess(
                label=self.label,
                variables=tuple(v.name for v in self.vars),
                mechanisms=self.mechanisms(),
                model=self._model_token,
                all_variables=tuple(self.likelihood.slices),
                n_records=self.likelihood.n_records,
                secret=not self.reproducible,
                starting=self.starting(),
                schedule=self.schedule(),
                token=self.token,
                public=self._public,
                declared=getattr(self.likelihood, "public", ()),
            ),
            getattr(self.likelihood, "containers", ()),
        )

    @abstractmethod
    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """Every data access of one iteration: ``(mechanism, count)`` pairs; of the first one if there is a schedule."""

    def starting(self) -> tuple[tuple[Mechanism, int], ...]:
        """Data accesses that each chain makes once, in addition to those of its iterations."""
        return ()

    def schedule(self) -> Callable[[int], tuple[tuple[Mechanism, int], ...]] | None:
        """Accesses of iteration 1, 2, ..., where they differ in a way that is fixed in advance."""
        return None

    def public_stats(self) -> dict[str, Any]:
        """Further statistics of the last iteration: only what was charged for or follows from public values."""
        return {}

    @abstractmethod
    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """One iteration: propose, charge, decide.

        Parameters
        ----------
        theta : array of shape (n_dim,)
            The current state, on the unconstrained scale.

        Returns
        -------
        theta : array of shape (n_dim,)
            The new state.
        accepted : bool
            Whether it is the proposed one.
        distance : float
            Public distance of the proposal.
        """

    @property
    def sensitivity_factor(self) -> float:
        """Largest change of a sum of clipped terms between neighbours, in units of the clip bound: 2 or 1."""
        adjacency = self.budget.adjacency if self.budget is not None else Adjacency.SUBSTITUTE
        return adjacency.sensitivity_factor

    def charge(self, accesses: Accesses) -> None:
        """Pay for accesses before they happen; ends the iteration if the budget does not suffice."""
        if self.budget is None:
            return
        if self._allocation is None:
            raise PrivacyBudgetExhausted(f"{self.label} has claimed nothing for this chain yet.")
        if not self._allocation.charge(accesses):
            raise _AllocationUsedUp

    # ------------------------------------------------------------------ life of a chain

    def __getstate__(self) -> dict[str, Any]:
        # A copy must not go on spending what the original has claimed: it claims for itself.
        return self.__dict__ | {"_opened": False, "_allocation": None}

    def begin_chain(self, rng: Any, tune: int) -> None:
        """Forget the previous chain; refuse tuning that would use up the chain's share of the budget."""
        self.rng = get_random_generator(rng, copy=False)
        self._reset_chain()
        if self.budget is None:
            return
        self.budget.check_covered()
        if tune and tune >= (most := self.budget.expected_draws()):
            raise PrivacyBudgetExhausted(
                f"tune={tune} draws would be charged like any others and thrown away, and the share of a chain pays for about {most:.0f}. "
                "Private steps do not adapt: pass tune=0. Nothing was accessed."
            )

    def expect_chains(self, n_chains: int) -> None:
        """Check the number of chains with the budget."""
        if (model := model_of(self._model_token)) is not None:
            check_data_are_those(self.likelihood, model)
        if self.budget is not None:
            self.budget.check_number_of_chains(self.label, n_chains)

    def check_begin(self, point: dict[str, np.ndarray]) -> None:
        """Raise ValueError if a chain cannot begin here: the prior is zero, or a value is not a number."""
        theta = self.likelihood.ravel(point)
        if not (np.isfinite(theta).all() and np.isfinite(self.likelihood.log_prior(theta))):
            raise ValueError(
                f"The prior is zero where a chain is to begin, {self.likelihood.unravel(theta)} on the unconstrained scale: give other initvals=. "
                "Nothing was accessed."
            )

    def _reset_chain(self) -> None:
        """Forget the previous chain. Its claim is on disk and stays."""
        self._opened = False
        self._allocation: Allocation | None = None
        self._tuning = True
        self._n_accepted = self._n_steps = self._n_frozen = 0

    def _open(self) -> None:
        """Claim the share of a chain, before its first access."""
        self.likelihood.check_reachable()
        if self.budget is not None:
            self._allocation = self.budget.claim(self.label, self.token)
        if self.reproducible:
            self._bits = SeededBits(self.rng)
        if self._tuning and self.budget is not None:
            _log.warning(
                "%s does not adapt: tuning draws are charged like any others, then thrown away. Pass tune=0 to pm.sample.",
                self.label,
            )
        self._opened = True

    def step(
        self, point: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """One iteration, or the unchanged point and a flag when the chain's share is used up."""
        if not self._opened:
            if self.budget is not None:
                self.check_begin(point)
            self._open()
        failed: BaseException | None = None
        try:
            theta, accepted, distance = self.transition(self.likelihood.ravel(point))
        except _AllocationUsedUp:
            accepted, distance, exhausted = False, 0.0, True
            self._stay()
        except Exception as error:
            failed = self._to_be_raised(error)
        else:
            exhausted = False
            self._n_steps += 1
            if accepted:
                self._n_accepted += 1
                point = self.likelihood.unravel(theta)
        if failed is not None:
            raise failed  # outside the handler, so that the withheld error is not its context
        spent = np.inf if self._allocation is None else self._allocation.epsilon_spent()
        stats = {
            "accepted": accepted,
            "acceptance_rate": self._n_accepted / max(self._n_steps, 1),
            "step_distance": distance,
            "epsilon_spent": spent,
            "exhausted": exhausted,
            TOKEN: self.token,
            **self.public_stats(),
        }
        if self.budget is not None:
            self.budget.run.latest = stats
        return point, [stats]

    def _to_be_raised(self, error: Exception) -> BaseException:
        """The error; with its message withheld if it comes from the model of a private run."""
        withheld = without_words(error, f"in draw {self._n_steps + 1} of {self.label}")
        frames = traceback.walk_tb(error.__traceback__)
        compiled = any(f.f_globals.get("__name__", "").startswith("pytensor.") for f, _ in frames)
        if isinstance(withheld, KeyboardInterrupt):
            return withheld
        if self.budget is not None and (compiled or isinstance(error, ModelError)):
            return withheld
        return error

    def _stay(self) -> None:
        """Count a call after the allocation was used up; raise if nothing will end the chain."""
        if self._n_steps == 0:
            raise PrivacyBudgetExhausted(
                f"The share of a chain does not pay for its first draw of {self.label}: the proposal is too long. Use a smaller "
                "proposal scale or clip bound, more noise, fewer chains, or a larger epsilon."
            )
        if self._tuning:
            raise PrivacyBudgetExhausted(
                f"The budget of {self.label} was used up by tuning draws, which are thrown away. Private steps do not adapt: pass tune=0."
            )
        self._n_frozen += 1
        is_due, budget = self._n_frozen % CALLS_WITHOUT_CALLBACK == 0, self.budget
        if is_due and budget is not None and not budget.ledger.has_callback(budget.id):
            raise PrivacyBudgetExhausted(
                f"The budget of {self.label} is used up after {self._n_steps} draws, and nothing stops the run: pass callback=budget to "
                "pm.sample, which ends it in time and keeps all draws. The data were not touched again."
            )
