"""Tables of experiments: what a page shows is what the command beside it prints, of results that are stored."""

import re
import subprocess
import sys

import pytest

from tests.documentation.conftest import FOLDER

ROOT = FOLDER.parent
#: Scripts and the page that shows what they print; no page if a notebook does, or none.
PAGES = {
    "clipping_table": "guarantees",
    "clusters": "many_machines",
    "comparison_experiments": None,
    "composition_table": "accounting",
    "fast_mh_experiments": "fast_mh",
    "fast_mh_table": "fast_mh",
    "gain_table": "accounting",
    "limits": "limits",
    "out_of_core": "larger_than_memory",
    "ppc_experiments": "checking_models",
    "private_compare_experiments": "comparing_models",
    "privatized_experiments": "privatized",
    "scores_experiments": "noisy_scores",
    "scores_mmd": "noisy_scores",
    "scores_mortgages": "noisy_scores",
    "sghmc_experiments": "sghmc",
    "stand_in_experiments": "private_covariates",
    "synthetic_experiments": "after_the_release",
    "peers/run_peers": "peers",
}
#: Those that need a package of an extra.
NEEDS = {"clusters": "distributed", "out_of_core": "pyarrow"}
#: Those whose runs in small take less than half a minute.
QUICK = ("clipping_table", "composition_table", "gain_table")


def page_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def shown(page, command):
    """Lines between the marks of a command."""
    mark = rf"<!-- [^\n]*: python {re.escape(command)} -->\n(.*?)\n<!-- end"
    return [
        line for found in re.findall(mark, page, re.DOTALL) for line in found.split("\n") if line
    ]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_what_is_printed(script, name):
    """Of the stored results; lines beside the tables are somewhere on the page."""
    for package in (NEEDS[name],) if name in NEEDS else ():
        pytest.importorskip(package)
    experiment = script(name).EXPERIMENT
    printed = [line for line in experiment.tables(experiment.stored()) if line]
    assert len(printed) > 3
    if PAGES[name] is not None:
        page = page_of(PAGES[name])
        between = shown(page, f"experiments/{name}.py --print")
        assert [line for line in printed if line.startswith("|")] == between
        assert [line for line in printed if line not in page] == []


def test_all_commands_of_the_pages_are_known():
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    named = {
        n for page in pages for n in re.findall(r"python experiments/([\w/]+)\.py --print", page)
    }
    assert named == {name for name, page in PAGES.items() if page is not None}
    scripts = {p.relative_to(FOLDER).with_suffix("").as_posix() for p in FOLDER.rglob("*.py")}
    with_runs = {
        name for name in scripts if "EXPERIMENT.main()" in (FOLDER / f"{name}.py").read_text()
    }
    assert with_runs == {*PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_rows_that_are_computed_again_are_those_stored(script, name):
    module = script(name)
    for setting in module.EXPERIMENT.small:
        assert module.run(setting, 0, None) == module.EXPERIMENT.stored()[setting]


@pytest.mark.slow
@pytest.mark.long
def test_the_table_of_batches():
    command = "-m tests.exactness.test_batch_bias"
    run = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=True, cwd=ROOT)  # fmt: skip
    assert [line for line in run.stdout.splitlines() if line] == shown(
        page_of("guarantees"), command
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["limits", "ppc_experiments", "privatized_experiments", "fast_mh_experiments"])  # fmt: skip
def test_runs_in_small(script, name):
    """Each of its small settings gives the columns that are stored; the other scripts take longer."""
    module = script(name)
    experiment, stored = module.EXPERIMENT, module.EXPERIMENT.stored()
    options, runner = script("runner").Options(small=True), script("runner")
    for setting in experiment.small or experiment.settings:
        found = runner.one(experiment.run, setting, 0, options)
        known = runner.within(stored, setting)[1]
        assert found and (not isinstance(known, dict) or {*found} <= {*known}), setting


def test_the_runner_makes_what_is_missing(script, tmp_path, capsys):
    """Two repetitions of one setting, one of which is stored, a single run, and a part; again, nothing is left to do."""
    runner = script("runner")
    (tmp_path / "made.json").write_text('{"kept": 1, "twice": {"value": [7.0]}}')
    experiment = runner.Experiment(
        str(tmp_path / "made.py"), made, {"twice": 2, "once": 0, "part / key": 0, "with": 1},
        lambda stored: [f"{stored['twice']['value'][1]:g}"], needs={"with": "a file"}, small=("twice",),
    )  # fmt: skip
    experiment.main(["--small"])
    assert "{'value': 100}" in capsys.readouterr().out and "once" not in experiment.stored()
    experiment.run_all([], runner.Options(), 1)
    expected = {
        "twice": {"value": [7.0, 1]},
        "once": {"value": 0},
        "kept": 1,
        "part": {"key": {"value": 0}},
    }
    assert experiment.stored() == expected
    assert "with is left out: --data is needed, a file" in capsys.readouterr().out
    assert experiment.missing(["twice", "once", "part / key"], experiment.stored()) == []
    experiment.main(["--print"])
    assert capsys.readouterr().out == "1\n"


def made(name, seed, options):
    return {"value": 100 if options.small else seed}
