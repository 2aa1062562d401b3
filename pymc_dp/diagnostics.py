"""How good a private posterior is, and what its draws cost: a discrepancy and two plots.

Plots need matplotlib, the extra ``plots``. Other plots of a released posterior are ArviZ's.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scipy.spatial.distance import cdist
from scipy.stats import gaussian_kde

from pymc_dp.privacy.accounting import max_draws
from pymc_dp.privacy.budget import PrivacyBudget
from pymc_dp.privacy.composition import Cost
from pymc_dp.privacy.families import Family
from pymc_dp.privacy.mechanisms import Mechanism, positive

__all__ = ["mmd", "plot_epsilon", "plot_posterior", "pyplot"]

_BLOCK = 4_000_000  # distances computed at a time, in about 100 MB


def mmd(
    draws: Any, reference: Any, *, bandwidth: float | None = None, random_seed: Any = 0
) -> float:
    r"""Maximum mean discrepancy of draws from reference draws: 0 for the same law, at most about 0.9.

    With :math:`k(x, y) = \exp(-\|x - y\|^2 / (2 \sigma^2))`, the root of the unbiased estimate,

    .. math:: \sqrt{\Big|\frac{\sum_{i \ne j} k(x_i, x_j)}{n (n - 1)} + \frac{\sum_{i \ne j} k(y_i, y_j)}{m (m - 1)}
              - \frac{2}{n m} \sum_{i, j} k(x_i, y_j)\Big|}.

    Two samples of 1000 of the same law come to about 0.02. Parameters of larger scale count more:
    standardise both by the reference if they should not. What is computed from exact draws is for
    evaluation, not for release: no budget pays for it.

    Parameters
    ----------
    draws, reference : array_like, arviz.InferenceData, xarray.DataTree, xarray.Dataset or dict
        Arrays of shape ``(n, d)`` or ``(chains, draws, d)``; or results, whose common variables are
        compared (group ``posterior``), a dict with arrays ``(chains, draws, *shape)``.
    bandwidth : float, optional
        :math:`\sigma`, in the units of the draws. By default the median distance within 500 pairs,
        one draw of each sample, taken with replacement (Räisä 2021, Differentially private
        Metropolis-Hastings algorithms, Section 5.3: 50 in the text, 500 in the experiments' code).
    random_seed : int or numpy.random.Generator
        Which pairs. By default always the same: the result is a function of the draws.

    Raises
    ------
    ValueError
        If shapes do not match, values are not finite, there are fewer than 2 draws, or most pairs
        are equal and no bandwidth is given.

    References
    ----------
    Gretton et al. (2012), A kernel two-sample test, https://jmlr.org/papers/v13/gretton12a.html.

    Examples
    --------
    >>> exact, again = np.random.default_rng(1).normal(size=(2, 1000, 2))
    >>> mmd(again, exact) < 0.1 < mmd(exact + 1, exact)
    True
    """
    own = _draws(draws)
    other = _draws(reference, like=own)
    names = sorted(set(own) & set(other))
    x, y = (
        np.hstack([s[n].reshape(-1, math.prod(s[n].shape[2:])) for n in names])
        for s in (own, other)
    )
    if min(len(x), len(y)) < 2:
        raise ValueError(f"At least 2 draws are needed, got {len(x)} and {len(y)}.")
    if bandwidth is None:
        rng = np.random.default_rng(random_seed)
        pairs = x[rng.integers(len(x), size=500)] - y[rng.integers(len(y), size=500)]
        bandwidth = float(np.median(np.linalg.norm(pairs, axis=1)))
    bandwidth = positive("bandwidth (else the median distance)", bandwidth)

    def total(a: np.ndarray, b: np.ndarray) -> float:
        rows = max(1, _BLOCK // len(b))
        distances = (cdist(a[i : i + rows], b) for i in range(0, len(a), rows))
        with np.errstate(over="ignore"):  # of distances beyond all bandwidths
            return math.fsum(np.exp(-0.5 * np.square(d / bandwidth)).sum() for d in distances)

    within = sum((total(z, z) - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y))
    return math.sqrt(abs(within - 2 * total(x, y) / (len(x) * len(y))))


def plot_epsilon(
    mechanisms: Any,
    *,
    delta: float | None = None,
    chains: int | None = None,
    draws: int | None = None,
    accountants: Sequence[str] = ("best",),
    ax: Any = None,
) -> Any:
    """Plot epsilon of all chains together against the number of draws of each.

    Parameters
    ----------
    mechanisms : iterable of (Mechanism, int), DPStep or PrivacyBudget
        What a draw accesses; or a step, or a budget with its steps, with schedules and what a chain
        accesses once. Where proposals decide the cost, the expected cost counts, as in a plan.
    delta, chains : float, int, optional
        By default those of the budget or of the step's budget; chains else 1.
    draws : int, optional
        Most draws per chain. By default up to 1.5 times the budget's epsilon, else to epsilon = 10,
        beyond which little is protected; from 10 to 20 000.
    accountants : sequence of str
        One line each, see :mod:`pymc_dp.privacy.composition`.
    ax : matplotlib.axes.Axes, optional
        By default that of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        With a line for each accountant, then a dashed one at the budget's epsilon, if there is one.

    Raises
    ------
    ValueError
        If nothing is accessed, or an accountant has no finite bound for it.
    """
    plt = pyplot()
    terms = getattr(mechanisms, "budget", mechanisms)
    epsilon = getattr(terms, "epsilon", math.inf)
    delta = getattr(terms, "delta", None) if delta is None else delta
    chains = getattr(terms, "chains", 1) if chains is None else chains
    each, once = _accesses(mechanisms)
    if delta is None or not each(1):
        raise ValueError(
            "Needed: a delta, and at least one access per draw (a step on the budget)."
        )
    if draws is None:
        target = 1.5 * epsilon if epsilon < math.inf else 10.0
        most = max_draws(each, target, delta, chains, per_chain=once, accountant="rdp")
        draws = max(10, int(most))
    if min(draws, chains) < 1:
        raise ValueError(f"draws and chains must be at least 1, got {draws!r} and {chains!r}.")
    # Epsilon grows about as the root of the number of draws.
    counts = sorted({round(x**2) for x in np.linspace(1, math.sqrt(draws), 25)})
    costs = [Cost.of(once)]
    for first, last in zip([0, *counts], counts, strict=False):
        new = Cost.of(access for t in range(first, last) for access in each(t + 1))
        costs.append(costs[-1] + new)
    lines = {a: [(cost * chains).epsilon(delta, a) for cost in costs[1:]] for a in accountants}
    if unbounded := [name for name, line in lines.items() if min(line) == math.inf]:
        raise ValueError(f"No finite bound for these mechanisms by {', '.join(unbounded)}.")
    ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")[1] if ax is None else ax
    for name, line in lines.items():
        ax.plot(counts, line, label=name)
    if epsilon < math.inf:
        ax.axhline(epsilon, color="0.4", linestyle="--", linewidth=1, label="budget")
    if len(ax.get_lines()) > 1:
        ax.legend(frameon=False)
    expected = "expected " * any(isinstance(m, _Expected) for m, _ in each(1))
    together = f", {chains} chains together" * (chains > 1)
    ax.set(xlabel="draws per chain", ylabel=f"{expected}ε at δ = {delta:g}{together}")
    ax.set(xlim=(0, None), ylim=(0, None))
    return ax


def plot_posterior(
    posterior: Any,
    prior: Any = None,
    *,
    var_names: Sequence[str] | None = None,
    reference: Any = None,
    n_columns: int = 3,
    axes: Any = None,
) -> np.ndarray:
    """Plot a released posterior, entry by entry, with the prior and a posterior without privacy.

    Densities are kernel estimates with Silverman's bandwidth for the *effective* number of draws
    (private chains are short, autocorrelated, and repeat draws). Positive ones are mirrored at 0.

    Parameters
    ----------
    posterior : arviz.InferenceData, xarray.DataTree or xarray.Dataset
        The released result.
    prior, reference : same, or dict of arrays, optional
        The result of ``pm.sample_prior_predictive`` (group ``prior``), in grey; a posterior without
        privacy, dashed. Arrays have shape ``(chains, draws, *shape)``.
    var_names : sequence of str, optional
        By default all variables. One panel per entry, at most 24 in a new figure.
    n_columns : int
        Panels in a row.
    axes : array of matplotlib.axes.Axes, optional
        One per panel; by default those of a new figure.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        One per panel; spans the posteriors and, of a wider prior, half as much again on both sides.

    Raises
    ------
    ValueError
        If a variable is unknown or has another shape elsewhere, or there are too many panels.
    """
    plt = pyplot()
    dataset = _dataset(posterior)
    own = _draws(dataset)
    names = [*own] if var_names is None else [*var_names]
    if unknown := [n for n in names if n not in own]:
        raise ValueError(f"Not in the posterior: {', '.join(unknown)}. There: {', '.join(own)}.")
    panels = [(n, *entry) for n in names for entry in _entries(dataset[n])]
    most = 24 if axes is None else np.size(axes)
    if not 0 < len(panels) <= most:
        raise ValueError(
            f"{len(panels)} panels, where 1 to {most} fit: choose with var_names=, or by .isel of the Dataset."
        )
    epsilon = dataset.attrs.get("epsilon")
    released = "released posterior" + (f", ε = {epsilon:.3g}" if epsilon is not None else "")
    samples = {"prior": _draws(prior, "prior", own)} if prior is not None else {}
    samples[released] = own
    if reference is not None:
        samples["posterior without privacy"] = _draws(reference, like=own)
    figure = None
    if axes is None:
        rows, columns = -(-len(panels) // n_columns), min(n_columns, len(panels))
        size = (3 * columns, 2.2 * rows + 0.4)
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained")
        for unused in np.ravel(axes)[len(panels) :]:
            unused.remove()
    axes = np.ravel(axes)[: len(panels)]
    lines: dict[str, Any] = {}
    looks = {"prior": {"color": "0.6"}, released: {"color": "C0"}}
    for ax, (name, index, label) in zip(axes, panels, strict=True):
        shown = {k: s[name][(..., *index)] for k, s in samples.items() if name in s}
        inner = np.concatenate([v.ravel() for k, v in shown.items() if k != "prior"])
        grid = _grid(inner, shown.get("prior", inner))
        positive = min(v.min() for v in shown.values()) >= 0
        for kind, values in shown.items():
            look = looks.get(kind, {"color": "black", "linestyle": "--"})
            (lines[kind],) = ax.plot(grid, _density(grid, values, positive), **look)
        ax.fill_between(*lines[released].get_data(), color="C0", alpha=0.2, linewidth=0)
        ax.set(xlabel=label, yticks=[], xlim=(grid[0], grid[-1]), ylim=(0, None))
        ax.spines[["left", "top", "right"]].set_visible(False)
    where = {"loc": "outside upper center", "ncols": 3} if figure else {"loc": "best"}
    (figure or axes[0]).legend(lines.values(), lines.keys(), frameon=False, **where)
    return axes


def pyplot() -> Any:
    """Matplotlib's, or say how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Plots need matplotlib: pip install "pymc-dp[plots]"') from error
    return plt


@dataclass(frozen=True, eq=False)
class _Expected(Mechanism):
    """Expected cost of accesses whose cost varies with the proposal: for looking ahead only."""

    family: Family

    @property
    def name(self) -> str:
        return self.family.name

    def _renyi(self, orders: np.ndarray) -> np.ndarray:
        return self.family.mean_renyi(orders)


def _accesses(source: Any) -> tuple[Callable[[int], list], list]:
    """Return accesses of draw 1, 2, ..., and those made once by every chain."""
    if isinstance(source, PrivacyBudget):
        steps = [(s.mechanisms, s.starting, s.schedule) for s in source.steps.values()]
    elif hasattr(source, "mechanisms"):
        steps = [(source.mechanisms(), source.starting(), source.schedule())]
    else:
        steps = [(tuple(source), (), None)]
    fixed = [access for every, _, schedule in steps if schedule is None for access in every]
    fixed = [(_Expected(m) if isinstance(m, Family) else m, k) for m, k in fixed]
    schedules = [schedule for *_, schedule in steps if schedule is not None]
    once = [access for _, starting, _ in steps for access in starting]
    return lambda t: [*fixed, *(access for schedule in schedules for access in schedule(t))], once


def _dataset(source: Any, group: str = "posterior") -> Any:
    """Group of a result as a Dataset, by what ArviZ has for it in both generations."""
    from arviz import convert_to_dataset

    if isinstance(source, np.ndarray | list | tuple):
        array = np.asarray(source, dtype=float)
        if array.ndim not in (2, 3):
            raise ValueError(f"Shape (n, d) or (chains, draws, d) is needed, not {array.shape}.")
        source = array.reshape(-1, *array.shape[-2:])
    elif hasattr(source, "to_dataset") and not source.children:  # a group of a DataTree
        source = source.to_dataset()
    return convert_to_dataset(source, group=group)


def _draws(source: Any, group: str = "posterior", like: Any = None) -> dict[str, Any]:
    """Finite draws ``(chains, draws, *shape)`` by name, with something in common with ``like``."""
    every = _dataset(source, group).data_vars.items()
    found = {str(n): v.transpose("chain", "draw", ...).to_numpy() for n, v in every}
    if like is not None and not set(found) & set(like):
        raise ValueError(f"No variable in common: {', '.join(found)}, and {', '.join(like)}.")
    for name, array in found.items():
        shape = array.shape if like is None or name not in like else like[name].shape
        if array.shape[2:] != shape[2:] or not np.isfinite(array).all():
            raise ValueError(
                f"{name}: values must be finite (no NaN), the shape of a draw {shape[2:]}; it is {array.shape[2:]}."
            )
    return found


def _entries(variable: Any) -> Iterator[tuple[tuple[int, ...], str]]:
    """Indices and labels of the entries of a variable."""
    draw = variable.isel(chain=0, draw=0)
    for index in np.ndindex(draw.shape):
        at = ", ".join(str(draw[d].values[i]) for d, i in zip(draw.dims, index, strict=True))
        yield index, f"{variable.name}[{at}]" if index else variable.name


def _grid(inner: np.ndarray, outer: np.ndarray) -> np.ndarray:
    """Points that span the inner draws, and of the outer ones half as much again on both sides."""
    (low, high), (least, most) = (np.quantile(draws, [0.005, 0.995]) for draws in (inner, outer))
    width = (high - low) or abs(low) or 1.0  # of a chain that never moved
    low = min(low - 0.25 * width, max(least, low - 0.5 * width))
    return np.linspace(low, max(high + 0.25 * width, min(most, high + 0.5 * width)), 300)


def _density(grid: np.ndarray, draws: np.ndarray, positive: bool) -> np.ndarray:
    """Density of draws, shape (chains, draws), as :func:`plot_posterior` describes it."""
    from arviz import ess

    spread = np.std(draws, ddof=1)
    if np.ptp(draws) == 0:  # chains that never moved
        return (np.arange(len(grid)) == abs(grid - draws.min()).argmin()) / (grid[1] - grid[0])
    middle = np.subtract(*np.quantile(draws, [0.75, 0.25])) / 1.34 or spread
    # Chain by chain: if chains disagree, that should show.
    effective = np.nansum([ess(chain[None]) for chain in draws]) or draws.size
    bandwidth = 0.9 * min(spread, middle) * min(effective, draws.size) ** -0.2
    kernel = gaussian_kde(draws.ravel(), bandwidth / spread)
    return np.where(grid >= 0, kernel(grid) + kernel(-grid), 0) if positive else kernel(grid)
