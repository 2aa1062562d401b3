"""Stored figures of records on a cluster, the page that shows them, and its example of several sites."""

import os
import re
import statistics
import subprocess
import sys

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "experiments" / "clusters.py"
PAGE = (ROOT / "docs" / "many_machines.md").read_text()

pytest.importorskip("distributed")


def test_the_page_has_the_stored_figures(experiments, stored):
    lines = experiments.tables(stored)
    assert len(lines) == 9
    assert "\n".join(lines[:5]) in PAGE and all(line in PAGE for line in lines)
    intercept, slope = experiments.law(stored)
    passes = 1e3 * experiments.LATENCY + intercept + 64 * slope
    work = min(stored["workers"]["workers_1"]) * 1e9 / experiments.N / 64
    assert f"about {passes:.0f} ms for a pass" in PAGE and f"about {work:.1f} s." in PAGE


def test_two_workers_are_nearly_twice_as_fast(stored):
    found = stored["workers"]
    assert min(found["workers_1"]) / min(found["workers_2"]) >= 1.8
    assert found["same"] and found["killed"] > min(found["workers_2"])


def test_a_pass_costs_little(experiments, stored):
    alone, cluster = (statistics.median(stored["overhead"][k]) for k in ("alone", "cluster"))
    assert cluster - alone <= 0.02
    for n in experiments.WORKERS:  # the law describes what was measured
        intercept, slope = experiments.law(stored)
        measured = 1e3 * (statistics.median(stored["latency"][str(n)]) - experiments.LATENCY)
        assert abs(measured - intercept - slope * n) < 0.25 * (20 + intercept + slope * n)


@pytest.mark.slow
def test_four_sites():
    """The example runs, and has the output of the page up to the noise; with a fifth of its draws, at equal cost."""
    code = "import functools, four_sites; dp = four_sites.dp; dp.sample = functools.partial(dp.sample, draws=200); four_sites.main()"
    path = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])  # hospitals import the example, too
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    head, *lines = ended.stdout.splitlines()[-4:]
    assert head in PAGE
    for line in lines:
        name, mean, sd = re.fullmatch(r"(\w+): (-?[\d.]+) \(sd ([\d.]+)\)", line).groups()
        shown = re.search(rf"^{name}: (-?[\d.]+) \(sd ([\d.]+)\)$", PAGE, re.MULTILINE)
        assert abs(float(mean) - float(shown[1])) < 0.25
        assert abs(float(sd) - float(shown[2])) < 0.5 * float(shown[2])
