"""The command that prints benchmarks works: parts, store, comparison, page. Nothing here depends on time."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.__main__ import PARTS, STORE, main
from tests.benchmarks.by_hand import clipped, logp
from tests.benchmarks.regression import problem
from tests.benchmarks.samplers import SAMPLERS, under_way
from tests.benchmarks.tables import changed, table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """File of a small run."""
    file = tmp_path_factory.mktemp("benchmarks") / "results.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--small", "--output", str(file)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return file


def test_all_parts_are_stored(store):
    results = json.loads(store.read_text())
    assert tuple(results) == PARTS
    for run in results.values():
        assert {"python", "pymc", "processor"} <= run["machine"].keys()
        assert len(run["load"]) == 2
        assert all(
            row and all(value is None or np.isfinite(value) for value in row.values())
            for rows in run["tables"].values()
            for row in rows.values()
        )


# Seeds decide in this part, so that a second run has the same results.
def test_second_run_marks_what_has_changed(store, capsys):
    results = json.loads(store.read_text())
    row = results["efficiency"]["tables"]["effective draws per unit of rho"]["DPPenalty, published"]
    known, row["easy-2d"] = row["easy-2d"], row["easy-2d"] / 2
    store.write_text(json.dumps(results))
    assert main(["efficiency", "--small", "--output", str(store)]) == 0
    printed = capsys.readouterr().out
    (marked,) = [line for line in printed.splitlines() if line.endswith(" * |")]
    assert marked.startswith("| DPPenalty, published |")
    again = json.loads(store.read_text())
    assert tuple(again) == PARTS
    rows = again["efficiency"]["tables"]["effective draws per unit of rho"]
    assert rows["DPPenalty, published"]["easy-2d"] == known


def test_definition_of_a_change():
    assert not changed("ratio", "c", 1.24, 1.0)
    assert changed("ratio", "c", 1.26, 1.0)
    assert changed("ratio", "c", 1.0, 1.26)
    assert changed("ratio", "c", None, 1.0)
    assert not changed("growth exponents", "c", 0.02, 0.2)
    assert changed("growth exponents", "c", 0.0, 0.3)
    assert not changed("microseconds", "c", 3.0, 1.0)
    lines = table("ratio", {"a": {"x": 2.0, "y": 1.0}}, {"a": {"x": 1.0}})
    assert lines[-1] == "| a | 2 (1) * | 1 |"


def test_page_has_what_is_stored(capsys):
    assert main(["--print"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert json.loads(STORE.read_text()).keys() == {*PARTS}
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    mark = r"<!-- [^\n]*: python -m tests.benchmarks --print -->\n(.*?)\n<!-- end"
    (stored,) = re.findall(mark, page, flags=re.DOTALL)
    assert stored.split() == " ".join(printed).split()  # prose is wrapped on the page


def test_small_runs_do_not_replace_the_last_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tests.benchmarks.__main__.STORE", tmp_path / "results.json")
    monkeypatch.setattr("tests.benchmarks.__main__.measure", lambda part, small: {})
    assert main(["--small"]) == 0
    assert not (tmp_path / "results.json").exists()
    assert main(["cost"]) == 0
    assert (tmp_path / "results.json").exists()


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_both_compute_the_same():
    """What is compared in time: log-likelihoods and sums of clipped gradients."""
    p = problem(1000, 3)
    step, _ = under_way("DPHMC, L = 1", p)
    theta = np.array([0.3, -0.5, 0.2])
    z = p.sign * (p.x @ theta)
    np.testing.assert_allclose(step.likelihood.logp(theta), logp(z), rtol=1e-10)
    by_hand = clipped(p.x, p.sign, np.linalg.norm(p.x, axis=1), z, 0.7)
    np.testing.assert_allclose(step.likelihood.clipped_grad(theta, 0.7), by_hand, atol=1e-4)


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "DPHMC, L = 5"])
def test_iterations_by_hand(name):
    """They run."""
    p = problem(500, 2)
    step, iterate = under_way(name, p)
    by_hand = SAMPLERS[name].by_hand(p, step)
    for _ in range(3):
        iterate()
        by_hand()
    assert step._allocation.used > 0
