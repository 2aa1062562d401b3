"""Data sets that differ in one record, with the same decisions and noisy gradients, which were paid for: all else is the same.

That is draws, statistics, the report, what is logged, warned of and printed, and the errors that end a run.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pymc as pm
import pytest

from pymc_dp import release
from pymc_dp.errors import PrivacyBudgetExhausted
from tests.audit.audited_samplers import (
    EXTREMES,
    SAMPLERS,
    budget_for,
    build,
    everything_logged,
    listened,
    normal_model,
    same_releases,
    sample,
)

__all__ = ["everything_logged"]  # a fixture


def without_times(text):
    """Output without what a clock has to do with."""
    lines = []
    for line in re.sub(r"[\d.]+ seconds", "", text).splitlines():
        if "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in line:  # a bar: draws, acceptance, epsilon, speed
            line = " ".join(line.split()[1:4])
        if not re.search(r"^ *draws/s|lock|compil|\N{BOX DRAWINGS LIGHT HORIZONTAL}", line):
            lines.append(" ".join(line.split()))
    return [line for line in lines if line]


def outcome(name, last, caplog, capfd):
    """All that a run shows, by what it is shown with; of a program that has not seen these data before."""
    model, budget = normal_model(last), budget_for()
    step = build(name, model, budget, last)

    def run():
        with same_releases():
            idata = sample(model, step, budget, progressbar=True, compute_convergence_checks=True)
        return release(idata, model, budget)

    public, said = listened(run, caplog, capfd)
    report = budget.report()
    return {
        "said": without_times(said),
        "report": (str(report), report.to_json(), report._repr_html_()),
        "draws": public.posterior["mu"].values.tolist(),
        **{k: public.sample_stats[k].values.tolist() for k in public.sample_stats.data_vars},
        "attributes": {k: v for k, v in public.posterior.attrs.items() if "created" not in k},
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("penalty", "Barker") else pytest.mark.slow)
        for n in SAMPLERS
    ],
)
def test_everything_shown_is_the_same(name, everything_logged, capfd):
    outcome(name, EXTREMES[0], everything_logged, capfd)  # what is compiled first says so
    first = outcome(name, EXTREMES[0], everything_logged, capfd)
    bars = [line for line in first["said"] if re.fullmatch(r"20 [\d.]+ [\d.]+", line)]
    assert bars
    assert any(SAMPLERS[name][0].__name__ in line for line in first["said"])
    for last in EXTREMES[1:5]:
        assert outcome(name, last, everything_logged, capfd) == first


def leaking(kind, how):
    """The sampler with a word about the data."""

    class Leaking(kind):
        def transition(self, theta):
            largest = float(np.max(np.abs(self.likelihood.logp(theta))))
            if how == "logs":
                import logging

                logging.getLogger("pymc.dp").debug("largest: %g", largest)
            elif how == "warns" and largest > 1e9:
                warnings.warn("A record is far out.", stacklevel=2)
            elif how == "prints":
                print(f"{largest:g}")
            return super().transition(theta)

        def public_stats(self):
            return {"acceptance_rate": float(np.sum(self.likelihood.logp(np.zeros(1))) > -1e9)} if how == "counts" else {}  # fmt: skip

    return Leaking


@pytest.mark.parametrize("how", ["logs", "warns", "prints", "counts"])
def test_output_with_private_values_is_found(how, everything_logged, capfd, monkeypatch):
    """Control: as another class, which is named in the output as the real one would be."""
    kind, options = SAMPLERS["Barker"]
    monkeypatch.setitem(SAMPLERS, "Barker", (leaking(kind, how), options))
    one, other = (outcome("Barker", last, everything_logged, capfd) for last in EXTREMES[:2])
    assert one != other
    assert (one["said"] != other["said"]) or how == "counts"


# ---------------------------------------------------------------- errors that end a run


def tuning(name, last):
    model, budget = normal_model(last), budget_for(epsilon=0.5)
    step = build(name, model, budget, last)
    step.set_rng(np.random.default_rng(1))
    point = model.initial_point()
    for _ in range(10 * int(budget.expected_draws()) + 10):
        point, _ = step.step(point)


def without_callback(name, last):
    model, budget = normal_model(last), budget_for(epsilon=0.5)
    step = build(name, model, budget, last)
    step.set_rng(np.random.default_rng(1))
    step.stop_tuning()
    point = model.initial_point()
    for _ in range(10 * int(budget.expected_draws()) + 2000):
        point, _ = step.step(point)


def second_run(name, last):
    model, budget = normal_model(last), budget_for()
    step = build(name, model, budget, last)
    for _ in range(2):
        sample(model, step, budget, draws=3)


def too_many_chains(name, last):
    model, budget = normal_model(last), budget_for()
    sample(model, build(name, model, budget, last), budget, draws=3, chains=2)


def hopeless(name, last):
    model, budget = normal_model(last), budget_for(epsilon=1e-4)
    sample(model, build(name, model, budget, last), budget)


ERRORS = [tuning, without_callback, second_run, too_many_chains, hopeless]
#: They take long to plan or to compile, and have no errors of their own.
LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("Barker on batches", "HMC")]


def message(error, name, last):
    with same_releases(), pytest.raises(PrivacyBudgetExhausted) as caught:
        error(name, last)
    chain, raised = [], caught.value
    while raised is not None:
        chain.append((type(raised), str(raised), getattr(raised, "__notes__", [])))
        raised = raised.__cause__ or raised.__context__
    return chain


@pytest.mark.parametrize("name", ["penalty", *LONG])
@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_the_same(error, name):
    messages = [message(error, name, last) for last in EXTREMES[:3]]
    assert all(one == messages[0] for one in messages)


def test_an_error_with_private_values_is_found(monkeypatch):
    """Control: a number of the data in an error of ours."""
    kind, options = SAMPLERS["Barker"]

    class ShowsValues(kind):
        def _stay(self):
            raise PrivacyBudgetExhausted(f"at {self.likelihood.logp(np.zeros(1)).sum():g}")

    monkeypatch.setitem(SAMPLERS, "Barker", (ShowsValues, options))
    assert message(without_callback, "Barker", 0.4) != message(without_callback, "Barker", 1e300)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["penalty", "DP-Fast MH", "SGHMC"])
def test_checks_of_what_is_observed_do_not_raise(name):
    """A check that fails on some data makes records impossible; it is no error, nor a word of its own."""

    def logp(value, mu):
        fine = pm.math.abs(value * mu) < 100
        return pm.distributions.dist_math.check_parameters(-((value - mu) ** 2), fine, msg="far")

    shown = []
    for last in (0.4, 1e6, np.inf):
        with pm.Model() as model:
            y = np.append(np.random.default_rng(3).normal(0.3, 1.0, 59), last)
            pm.CustomDist("y", pm.Normal("mu", 0, 2), logp=logp, observed=y)
        budget = budget_for()
        step = build(name, model, budget, "checked", last)
        with same_releases():
            shown.append(sample(model, step, budget).posterior["mu"].values.tolist())
    assert shown[0] == shown[1] == shown[2]


@pytest.mark.parametrize("scale", [2.0, 76.0, 80.0, 120.0])
def test_much_noise_is_no_error(scale):
    """Noise that follows the sensitivity is large on long moves: whether that is an error must not follow from the log-ratio."""
    shown = []
    for last in (0.4, 1e300, -1e300):
        model, budget = normal_model(last), budget_for(epsilon=np.inf)
        options = {"clip_bound": 2000.0, "noise_scale": scale}
        step = build("penalty", model, budget, last, **options)
        try:
            with same_releases():
                sample(model, step, budget)
            shown.append("sampled")
        except Exception as error:
            shown.append(repr(error))
    assert shown == ["sampled"] * 3
