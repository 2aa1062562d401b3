"""The experiments of the DP-Fast MH paper in small, and what is stored of the full ones."""

import importlib.util
import json
import sys

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "fast_mh_experiments.py"
IMAGES = ROOT.parent / "shared" / "data" / "mnist_7_9_pca50.npz"


@pytest.fixture(scope="module")
def experiments():
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[SCRIPT.stem]


@pytest.fixture(scope="module")
def stored():
    return json.loads(SCRIPT.with_suffix(".json").read_text())


# ------------------------------------------------------------------------- what is stored
def test_stored_results_are_those_of_the_script(experiments, stored):
    settings = stored["mixture"]["settings"]
    assert settings["draws"] == stored["images"]["settings"]["draws"] == experiments.DRAWS
    assert settings["delta"] == stored["images"]["settings"]["delta"] == experiments.DELTA
    assert settings["clip bound"] == experiments.MIXTURE.clip_bound
    assert settings["longest scale"] == experiments.MIXTURE.longest
    assert settings["batch size or rate"] == experiments.MIXTURE.batch
    exact = np.array(stored["mixture"]["cells"]["exact"])
    np.testing.assert_allclose(exact, experiments.mixture_exact(), atol=1e-5)
    for part in stored.values():
        assert {row["sampler"] for row in part["rows"]} == {*experiments.PRIVATE, "tuna"}


def test_stored_runs_kept_to_their_budgets(stored):
    for part in stored.values():
        for row in part["rows"]:
            if row["epsilon"] is not None:  # rounded to four digits
                assert 0.9 * row["epsilon"] < row["epsilon spent"] <= row["epsilon"]
                assert row["draws"] <= part["settings"]["draws"]


# ------------------------------------------------------------------------- run again, in small
def test_symmetric_kl(experiments):
    exact = experiments.mixture_exact()
    assert experiments.symmetric_kl(exact, exact) == 0
    assert exact.sum() == pytest.approx(1)
    # Each mode has about half of the mass: the posterior is symmetric in the components.
    middle = experiments.CELLS // 2
    assert exact[:, :middle].sum() == pytest.approx(0.5, abs=0.02)
    # Halved, independent draws are about twice as far off.
    few, many = experiments.independent(1000), experiments.independent(2000)
    assert 1.6 < few / many < 2.6
    smaller, larger = np.array([[0.8, 0.2]]), np.array([[0.2, 0.8]])
    a, b = 0.99 * 0.8 + 0.005, 0.99 * 0.2 + 0.005
    assert experiments.symmetric_kl(smaller, larger) == pytest.approx((a - b) * np.log(a / b))


@pytest.mark.slow
def test_mixture_batches_do_as_well_as_all_records(experiments):
    epsilon, draws, seeds = 0.5, 2000, range(4)
    problem = replace(experiments.MIXTURE, draws=draws)
    rows = {}
    for name in ("fast", "full"):
        rows[name], _ = experiments.replicate(problem, name, epsilon, seeds)
        assert 0.9 * epsilon < rows[name]["epsilon spent"] <= epsilon
        assert 0.9 * draws < rows[name]["draws"] <= draws
    assert rows["fast"]["records per iteration"] < 1200
    assert rows["full"]["records per iteration"] == problem.records

    # 0.3 to 0.5 is what chains of this length differ by, in the log of their divergence.
    logs = {name: np.log(row["KL"]) for name, row in rows.items()}
    error = np.sqrt(sum(max(log.std(ddof=1), 0.3) ** 2 for log in logs.values()) / len(seeds))
    assert abs(logs["fast"].mean() - logs["full"].mean()) < 4 * error

    exact = experiments.mixture_exact()
    cells = exact.size
    prior = experiments.symmetric_kl(exact, np.full_like(exact, 1 / cells))
    start = experiments.symmetric_kl(exact, experiments.in_cells(np.zeros((1, 2))))
    for name in rows:
        assert max(rows[name]["KL"]) < min(prior, start) / 3
        assert np.mean(rows[name]["KL"]) > experiments.independent(
            draws
        )  # no better than it can be


@pytest.mark.slow
@pytest.mark.skipif(not IMAGES.exists(), reason=f"needs the reference data {IMAGES.name}")
def test_images_are_told_apart(experiments):
    images = experiments.read_images(IMAGES)
    problem = images.problem(draws=2000)
    row, _ = experiments.replicate(problem, "fast", 4.0, [0])
    assert 3.6 < row["epsilon spent"] <= 4.0
    assert row["records per iteration"] < 0.06 * problem.records
    chance = max(np.mean(images.y_test), 1 - np.mean(images.y_test))
    assert chance < 0.52
    assert row["accuracy"][0] > 0.9
    assert row["log-loss"][0] < 0.35 < np.log(2)
