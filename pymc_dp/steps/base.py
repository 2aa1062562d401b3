"""The one adapter between private algorithms and PyMC's step API."""

from __future__ import annotations

import inspect
import logging
import traceback

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from pymc.model import modelcontext
from pymc.step_methods.compound import BlockedStep, StepMethodState
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from rich.progress import TextColumn
from rich.table import Column

from pymc_dp.errors import ModelError, PrivacyBudgetExhausted
from pymc_dp.model.identity import model_token
from pymc_dp.model.records import RecordLikelihood
from pymc_dp.model.withheld import without_words
from pymc_dp.privacy.allowance import Allowance, StepAccess
from pymc_dp.privacy.binding import TOKEN, new_token
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.mechanisms import Adjacency, Mechanism
from pymc_dp.privacy.noise import BitSource, OperatingSystemBits, SeededBits

__all__ = ["DPStep"]

_log = logging.getLogger("pymc.dp")

#: Calls after the end of the allowance that are taken to mean that nobody listens. PyMC runs up to
#: two steps ahead of its callback, but a chain in a worker process waits out its draws while others
#: finish.
_PATIENCE = 1000

#: Where to get what every user has to give.
_SOURCES = {
    "budget": "budget=PrivacyBudget(epsilon=..., delta=..., chains=...), or None for a run without privacy",
    "surrogate": "surrogate=private_surrogate(budget=budget), which the same budget pays for",
}
_PLANS = (
    "plan(step={}, budget=budget) finds settings on simulated records, at no cost in privacy, and sample(epsilon=..., delta=...) "
    "needs none"
)


def _tuning_draws() -> int:
    """Tuning draws of the chain that begins, from PyMC 5's own frames as it tells no step; 0 if they cannot be found."""
    frame = inspect.currentframe()
    while frame is not None:
        known = frame.f_locals
        if frame.f_globals.get("__name__") in ("pymc.sampling.mcmc", "pymc.sampling.parallel"):
            return int(known.get("tune", getattr(known.get("self"), "_tune", 0)))
        frame = frame.f_back
    return 0


class _AllowanceUsedUp(Exception):
    """The next iteration is not paid for; nothing was accessed."""


class DPStep(BlockedStep):
    """Base class of all private steps: claims before the first access, counts, stops.

    A subclass says in :meth:`mechanisms` the whole truth about what one iteration accesses, and
    writes :meth:`transition`, which calls :meth:`charge` before it touches the data.

    Parameters
    ----------
    vars : list of variables, optional
        Variables to update, all by default. Others need a step on the same budget.
    budget : PrivacyBudget or None
        What may be spent. None, which must be said, runs without privacy.
    records : array_like of int, or dict of such arrays, optional
        Privacy units, see :class:`~pymc_dp.model.records.RecordLikelihood`.
    public : sequence of str or array, optional
        Arrays of the model that hold no data of records, by name or as they are, see
        :class:`~pymc_dp.model.records.RecordLikelihood`. The report lists them.
    reproducible : bool
        Draw decisions from PyMC's ``random_seed`` in place of the operating system's randomness.
        Breaks the guarantee, and the report says so: for tests and public data.
    model : pm.Model, optional
        The model, else the one on the context stack.
    compile_kwargs : dict, optional
        For ``pytensor.function``, e.g. ``{"mode": "JAX"}``; Numba by default.
    """

    name = "dp_step"
    default_blocked = True
    default_tune_steps = 0
    stats_dtypes_shapes: ClassVar[dict[str, tuple[type, list]]] = {
        "accepted": (bool, []),
        "acceptance_rate": (np.float64, []),
        "step_distance": (np.float64, []),
        "epsilon_spent": (np.float64, []),
        "exhausted": (bool, []),
        TOKEN: (np.int64, []),
    }
    _state_class = StepMethodState
    #: What the charge rests on: set once, when the step is built.
    settled: ClassVar[tuple[str, ...]] = (
        "budget",
        "likelihood",
        "part",
        "label",
        "reproducible",
        "token",
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Name the arguments that are missing, and where to get them."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        missing = [name for name in needed if name not in kwargs]
        if missing:
            known = [_SOURCES[name] for name in missing if name in _SOURCES]
            planned = "budget" in needed and cls.__module__.startswith("pymc_dp.")
            if planned and not _SOURCES.keys() >= set(missing):
                known.append(_PLANS.format(cls.__name__))
            raise TypeError("; ".join([f"{cls.__name__} needs {', '.join(missing)}", *known]) + ".")
        return super().__new__(cls, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes that the budget would not learn of."""
        if name in self.settled and name in self.__dict__:
            raise AttributeError(
                f"{name} cannot be changed: the budget has been told what this step costs. Build a "
                "new step."
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
        blocked: bool = True,
        rng: Any = None,
        compile_kwargs: dict | None = None,
    ):
        if not isinstance(budget, PrivacyBudget | None):
            raise TypeError(
                f"budget must be a PrivacyBudget (or None for a run without privacy), got {type(budget).__name__}."
            )
        if not blocked:
            raise ValueError(
                "A private step updates its variables together; build one step per variable to update them one by one."
            )
        model = modelcontext(model)
        variables = model.value_vars if vars is None else get_value_vars_from_user_vars(vars, model)
        self.vars = list(variables)
        self.blocked = True
        self.rng = get_random_generator(rng)
        self.budget = budget
        self.reproducible = bool(reproducible)
        self.likelihood = RecordLikelihood(
            model, records=records, public=public, private=budget is not None,
            compile_kwargs=compile_kwargs,
        )  # fmt: skip
        self._public = tuple(public)
        names = tuple(v.name for v in self.vars)
        self.label = f"{type(self).__name__}[{', '.join(names)}]"
        everything = np.arange(self.likelihood.n_dim)
        #: Positions of the step's variables in theta.
        self.part = np.concatenate([everything[self.likelihood.slices[n]] for n in names])
        self._model_names = tuple(v.name for v in model.value_vars)
        self._model_token = model_token(model)
        #: Public number on each draw, which shows release() the budget that paid: 0 if nobody does.
        self.token = 0 if budget is None else new_token(budget.id)
        self._bits: BitSource = OperatingSystemBits()
        self._reset_chain()

    def _register(self) -> None:
        """Tell the budget what an iteration costs; subclasses call it when they are complete."""
        if self.budget is not None:
            self.budget.register(
                StepAccess(
                    label=self.label,
                    variables=tuple(v.name for v in self.vars),
                    mechanisms=self.mechanisms(),
                    model=self._model_token,
                    all_variables=self._model_names,
                    n_records=self.likelihood.n_records,
                    secret=not self.reproducible,
                    starting=self.starting(),
                    schedule=self.schedule(),
                    token=self.token,
                    data_keys=getattr(self.likelihood, "data_keys", ()),
                    public=self._public,
                    declared=getattr(self.likelihood, "public", ()),
                )
            )

    @abstractmethod
    def mechanisms(self) -> tuple[tuple[Mechanism, int], ...]:
        """Every access of one iteration: ``(mechanism, count)`` pairs; of the first, if there is a schedule."""

    def starting(self) -> tuple[tuple[Mechanism, int], ...]:
        """What a chain accesses once, besides."""
        return ()

    def schedule(self) -> Callable[[int], tuple[tuple[Mechanism, int], ...]] | None:
        """Accesses of iteration 1, 2, ..., where they differ in a way that is fixed in advance."""
        return None

    def public_stats(self) -> dict[str, Any]:
        """Statistics of the last iteration besides those of all steps; nothing that was not charged for."""
        return {}

    @abstractmethod
    def transition(self, theta: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """One iteration from ``theta``, shape ``(n_dim,)``: the new state, whether it was accepted, the distance proposed."""

    @property
    def _sides(self) -> float:
        """How often its clip bound a record can move a sum: twice if replaced, once if removed."""
        adjacency = self.budget.adjacency if self.budget is not None else Adjacency.SUBSTITUTE
        return {Adjacency.SUBSTITUTE: 2.0, Adjacency.ADD_REMOVE: 1.0}[adjacency]

    def charge(self, accesses: Sequence[tuple[Mechanism, int]]) -> None:
        """Pay for the accesses of one iteration before they happen."""
        if self.budget is None:
            return
        if self._allowance is None:
            raise PrivacyBudgetExhausted(f"{self.label} has claimed nothing for this chain yet.")
        if not self._allowance.charge(accesses):
            raise _AllowanceUsedUp

    def __getstate__(self) -> dict[str, Any]:
        # A copy must not go on spending what the original has claimed: it claims for itself.
        return self.__dict__ | {"_opened": False, "_allowance": None}

    # ------------------------------------------------------------------ life of a chain

    def set_rng(self, rng: Any) -> None:
        """Start a chain (PyMC 5)."""
        self.setup_chain(rng, _tuning_draws(), 0)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Start a chain (PyMC 6)."""
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

    def stop_tuning(self) -> None:
        """PyMC's signal that the draws to be kept begin; given before the first call if there is no tuning."""
        self._tuning = False

    def _reset_chain(self) -> None:
        """Forget the previous chain. The claim itself is on disk and not undone by this."""
        self._opened = False
        self._allowance: Allowance | None = None
        self._tuning = True
        self._n_accepted = self._n_steps = self._n_frozen = 0

    def _open(self) -> None:
        if self.budget is not None:
            self._allowance = self.budget.claim(self.label, self.token)
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
        """One iteration, or the unchanged point and a flag when the allowance is used up."""
        if not self._opened:
            self._open()
        failed: BaseException | None = None
        try:
            theta, accepted, distance = self.transition(self.likelihood.ravel(point))
        except _AllowanceUsedUp:
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
            raise failed  # out here, so that an error whose words are withheld is not its context
        stats = {
            "accepted": accepted,
            "acceptance_rate": self._n_accepted / max(self._n_steps, 1),
            "step_distance": distance,
            "epsilon_spent": self._allowance.epsilon_spent()
            if self._allowance is not None
            else np.inf,
            "exhausted": exhausted,
            TOKEN: self.token,
            **self.public_stats(),
        }
        if self.budget is not None:
            self.budget.watch(stats)
        return point, [stats]

    def _to_be_raised(self, error: Exception) -> BaseException:
        """Return the error, or, where a private run's model itself has failed, one with none of its words."""
        withheld = without_words(error, f"in draw {self._n_steps + 1} of {self.label}")
        frames = traceback.walk_tb(error.__traceback__)
        compiled = any(f.f_globals.get("__name__", "").startswith("pytensor.") for f, _ in frames)
        if isinstance(withheld, KeyboardInterrupt):
            return withheld
        if self.budget is not None and (compiled or isinstance(error, ModelError)):
            return withheld
        return error

    def _stay(self) -> None:
        """Account for a call that came after the end of the allowance."""
        assert self.budget is not None  # without a budget nothing runs out
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
        if self._n_frozen % _PATIENCE == 0 and not self.budget.has_callback():
            raise PrivacyBudgetExhausted(
                f"The budget of {self.label} is used up after {self._n_steps} draws, and nothing stops the run: pass callback=budget to "
                "pm.sample, which ends it in time and keeps all draws. The data were not touched again."
            )

    # ------------------------------------------------------------------ progress bar

    def _progressbar_config(self, n_chains: int = 1) -> tuple[list, dict[str, list[float]]]:
        # The only place where PyMC tells a step how many chains there will be, before the first one
        # starts.
        if self.budget is not None:
            self.budget.expect_chains(self.label, n_chains)
        columns = [
            TextColumn(
                "{task.fields[acceptance_rate]:0.2f}", table_column=Column("Accept", ratio=1)
            ),
            TextColumn(
                "{task.fields[epsilon_spent]:0.3f}", table_column=Column("Epsilon", ratio=1)
            ),
        ]
        return columns, {"acceptance_rate": [0.0] * n_chains, "epsilon_spent": [0.0] * n_chains}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable, ...]:
        return (lambda stats: {key: stats[key] for key in ("acceptance_rate", "epsilon_spent")},)
