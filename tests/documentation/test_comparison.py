"""The comparison of samplers: the measures of its script, and its stored results."""

import importlib.util
import math
import sys

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "comparison_experiments.py"
N = 2000


@pytest.fixture(scope="module")
def comparison():
    """Load the script, with those beside it that it imports."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
        module = importlib.util.module_from_spec(spec)
        sys.modules[SCRIPT.stem] = module  # its dataclasses look for themselves there
        spec.loader.exec_module(module)
        yield module
    for name in {SCRIPT.stem, "benchmark_models", "mmd"} - before:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def case(comparison):
    """The flat banana with few records."""
    return comparison.Case(replace(comparison.EXPERIMENTS["easy-2d"], n_records=N), seed=5)


# ------------------------------------------------------------------------- measures
def test_second_half_is_compared_with_exact_draws(comparison, case):
    sds = case.experiment.sds(case.data)
    draws = case.experiment.exact(case.data, 1000, np.random.default_rng(6))
    beginning = draws + 20 * sds
    same = comparison.compared(case, np.vstack([beginning, draws]))
    assert same["mmd"] < 0.1 and same["shift"] < 5 / math.sqrt(len(draws))
    off = comparison.compared(case, np.vstack([beginning, draws + 2 * sds]))
    assert off["mmd"] > 0.4 and off["shift"] == pytest.approx(2, abs=0.2)
    assert off["error"] == pytest.approx(2 * np.linalg.norm(sds), rel=0.1)


def test_independent_draws_are_near_zero(comparison, case):
    values = comparison.independent(case)
    assert len(values) == 10 and max(values) < 0.1


def test_share_of_clipped_gradients(comparison, case):
    """Differences of log-likelihoods against derivatives by hand."""
    points = case.exact[:3]
    x1, x2 = case.data.T
    expected = []
    for first, second in points:
        left = (x2 - second - 20 * first**2) / 2.5
        norm = np.hypot((x1 - first) / 20 + 40 * first * left, left)
        expected.append(np.mean(norm > 1.0))
    rng = np.random.default_rng(1)
    found = comparison.clipped_gradients(case, points, 1.0, rng)  # of all records, as they are few
    assert 0.01 < found < 0.99 and found == pytest.approx(np.mean(expected), abs=2 / N)


def test_share_of_clipped_ratios(comparison, case):
    old, new = case.exact[:2]
    distance = np.linalg.norm(new - old)
    change = np.abs(case.likelihood.logp(new) - case.likelihood.logp(old)) / distance
    for share in (0.9, 0.2):
        bound = np.quantile(change, 1 - share)
        moves, rng = [(old, new, distance)], np.random.default_rng(1)
        found = comparison.clipped_ratios(case, moves, bound, rng)
        assert found == pytest.approx(share, abs=2 / N)


# ------------------------------------------------------------------------- runs
def test_settings(comparison):
    for name, experiment in comparison.EXPERIMENTS.items():
        for sampler in comparison.SAMPLERS:
            chosen = comparison.settings(experiment, sampler)
            assert (chosen is None) == ("batch" in sampler and name not in comparison.BATCH)
    # This sampler has its own noise.
    _, options = comparison.settings(comparison.EXPERIMENTS["circle"], "penalty_two")
    assert "noise_multiplier" not in options


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", ["penalty", "guided", "penalty_two", "hmc", "batch", "batch_guided", "barker_batch"]
)
def test_tiny_run(comparison, case, sampler):
    found, draws = comparison.run(case, sampler, epsilon=100.0, number=0, most=12)
    assert draws.shape == (found["draws"], 2) and 4 <= found["draws"] <= 12
    assert np.isfinite(draws).all() and 0 <= found["mmd"] <= 1
    assert found["bought"] > 4 and 0 <= found["accepted"] <= 1
    assert 0 <= found["clipped"] <= 1
    assert ("clipped gradients" in found) == (sampler == "hmc")
    # From the starting point, by moves of the proposal's size: a chain that never moved is there.
    away = np.linalg.norm(draws - case.starts[0], axis=1)
    assert away[0] < 0.2 and away.max() < 1


def test_runs_without_draws_are_results(comparison, case):
    row = comparison.cell(case, "penalty", 1e-4, seconds=0.0)
    assert row.pop("CPU seconds") >= 0 and row == {"runs": 0, "failed": comparison.FEWEST}


def test_cells_can_be_extended(comparison, case):
    """Additional runs are those that a longer first attempt would have made."""
    few = comparison.cell(case, "penalty", 100.0, most=8, seconds=0.0)
    more = comparison.cell(case, "penalty", 100.0, few, most=8, seconds=math.inf, runs=4)
    assert few["runs"] == comparison.FEWEST and more["runs"] == 4
    assert more["mmd"][:3] == few["mmd"] and len(set(more["mmd"])) == 4
    assert not comparison.unfinished(more, math.inf, 4) and comparison.unfinished(more, math.inf)


def test_clipping_run(comparison, case, monkeypatch):
    monkeypatch.setattr(
        comparison.Case, "sample", lambda self, *_: (self.exact[:40].repeat(2, axis=0), None)
    )
    loose, tight = (comparison.clipping_run(case, "random walk", b, 0) for b in (2.5, 1e-6))
    assert loose["clipped"] < 0.1 and tight["clipped"] > 0.99


# ------------------------------------------------------------------------- what is stored
def test_stored_settings_are_those_of_the_script(comparison, stored):
    assert SCRIPT.with_suffix(".json").stat().st_size < 300_000
    kept = stored["settings"]
    assert list(kept["epsilons"]) == list(stored["independent"]) == list(comparison.EXPERIMENTS)
    assert all(kept["epsilons"][n] == list(comparison.epsilons_of(n)) for n in kept["epsilons"])
    assert kept["most runs"] == comparison.RUNS


def test_all_cells_are_stored(comparison, stored):
    for name, experiment in comparison.EXPERIMENTS.items():
        assert max(stored["independent"][name]) < 0.1
        for sampler in comparison.SAMPLERS:
            for epsilon in comparison.epsilons_of(name):
                row = comparison.stored_row(stored, name, sampler, epsilon)
                if comparison.settings(experiment, sampler) is None:
                    assert row is None
                    continue
                assert row["runs"] + row["failed"] >= comparison.FEWEST
                if row["runs"]:
                    assert all(len(row[key]) == row["runs"] for key in ("mmd", "draws", "clipped"))
                    assert max(row["draws"]) <= comparison.most_draws(experiment, sampler)
                    assert 0 <= min(row["mmd"]) and max(row["mmd"]) < 1.1


def test_clipping_is_stored(comparison, stored):
    for name, (runs, *_) in comparison.CLIPPING.items():
        for kind in ("random walk", "HMC"):
            rows = [stored["clipping"][f"{name}, {kind}, bound {b:g}"] for b in comparison.BOUNDS]
            assert all(len(row["mmd"]) == runs for row in rows)
            shares = [np.mean(row["clipped"]) for row in rows]
            assert shares[0] > 0.5 and shares[-1] < 0.05
            assert sorted(shares, reverse=True) == shares


def test_published_numbers_parse(comparison, stored):
    quoted = stored["published"]
    assert "Räisä" in quoted["source"] and "Figures 6.3 and 6.4" in quoted["source"]
    for key, (low, median, high) in quoted["mmd"].items():
        name, sampler, epsilon = key.split(", ")
        assert name in comparison.EXPERIMENTS and sampler in comparison.ALGORITHMS
        assert float(epsilon.removeprefix("epsilon ")) >= 1 and 0 < low < median < high < 1
    for name, experiment in comparison.EXPERIMENTS.items():
        for sampler in comparison.ALGORITHMS:
            if name != "circle" and comparison.settings(experiment, sampler):
                assert sum(key.startswith(f"{name}, {sampler},") for key in quoted["mmd"]) >= 5
    # Counted by Theorem 3.2, as the documentation has it too.
    assert quoted["iterations"]["easy-2d, penalty, epsilon 4"]["adp"] == 702


def test_results_are_written_and_read(comparison, stored, tmp_path):
    path = tmp_path / "results.json"
    comparison.write(stored, path)
    assert path.read_text() == SCRIPT.with_suffix(".json").read_text()


def test_published_files(comparison, tmp_path):
    one, two = tmp_path / "mmd.csv", tmp_path / "iterations.csv"
    one.write_text("experiment,algorithm,epsilon,q25,median,q75\neasy-2d,dppa,2,0.2,0.3,0.4\n")
    two.write_text("experiment,algorithm,accounting,epsilon,iterations\neasy-2d,hmc,adp,0.5,20\n")
    found = comparison.published(one, two)
    assert found["mmd"] == {"easy-2d, guided, epsilon 2": [0.2, 0.3, 0.4]}
    assert found["iterations"] == {"easy-2d, hmc, epsilon 0.5": {"adp": 20}}


def test_reruns_of_a_cell_are_the_same(comparison, case):
    """Decisions are drawn from seeds: results can be reproduced."""
    first, again = (comparison.run(case, "penalty", 100.0, 1, most=12)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert comparison.mmd(first, again) < 0.5
