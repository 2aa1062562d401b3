"""What a report covers, who paid for draws, and warnings: without PyMC."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from pymc_dp.errors import (
    PrivacyLeak,
)
from pymc_dp.privacy.budget.budget import PrivacyBudget
from pymc_dp.privacy.budget.coverage import covered_by, uncovered
from pymc_dp.privacy.budget.draws import check_draws, new_token
from pymc_dp.privacy.budget.report import PrivacyReport
from pymc_dp.privacy.mechanisms.l2_laplace import L2Laplace
from pymc_dp.privacy.mechanisms.mechanism import Gaussian

ACCESS = ((Gaussian(20.0), 1),)


def budget_of(epsilon=1.0, delta=1e-6, chains=2, **kwargs):
    return PrivacyBudget(epsilon, delta, chains=chains, **kwargs)


class TestWhoPaid:
    def test_draws(self):
        budget, other = budget_of().id, budget_of().id
        mine, second, theirs = new_token(budget), new_token(budget), new_token(other)

        def but_one(token, place):
            """Draws of the step, but for one."""
            tokens = np.full((2, 5), mine, dtype=float)
            tokens[place] = token
            return tokens

        check_draws(
            np.broadcast_to([second, mine], (2, 5, 2)).astype(float), [mine, second], budget
        )
        faults = {
            "on another budget": (but_one(theirs, (0, 0)), [mine]),
            "another budget": (but_one(theirs, (1, 4)), [mine]),
            "budget=None, for which": (but_one(0, (0, 0)), [mine]),
            "budget=None": (but_one(0, (1, 4)), [mine]),
            "newer one has replaced": (np.full((2, 5), second), [mine]),
            "by 1 of the 2 steps": (np.full((2, 5), mine), [mine, second]),
            "by 2 of the 1 steps": (np.full((2, 5, 2), mine), [mine]),
            "do not show which": (np.full((2, 5), np.nan), [mine]),
            "was removed": (None, [mine]),
            "were made by a step with": (np.zeros((2, 5)), [0]),
        }
        for words, (tokens, registered) in faults.items():
            with pytest.raises(PrivacyLeak, match=words):
                check_draws(tokens, registered, budget)


def group(names=("mu",), n=5, **coords):
    return xr.Dataset({name: ("draw", np.zeros(n)) for name in names}, coords={"draw": range(n)} | coords)  # fmt: skip


class TestCoverage:
    COVERS = covered_by({"posterior": group(), "sample_stats": group(["accepted"])})

    def tree(self, **groups):
        return xr.DataTree.from_dict({"posterior": group(), **groups})

    def test_what_was_added(self):
        added = group(["mu", "residual"], n=6, person=("draw", list("abcdef")))
        added["mu"].attrs["data"], added.attrs["note"] = 1, 2
        expected = {
            "posterior: residual", "posterior: person", "posterior: attribute note",
            "posterior: attributes of mu", "posterior: draw of length 6, released with 5",
        }  # fmt: skip
        assert set(uncovered({"posterior": added}, self.COVERS)) == expected
        tree = self.tree(observed_data=group())
        tree.attrs["copy"] = 1
        tree["posterior/inner"] = xr.DataTree(group())
        assert set(uncovered(tree, self.COVERS)) == {"/: attribute copy", "observed_data", "posterior/inner"}  # fmt: skip
        tree = self.tree()
        tree.dataset = xr.Dataset({"y": ("draw", np.ones(5))})
        assert set(uncovered(tree, self.COVERS)) == {"/: y", "/: draw of length 5, released with no such axis"}  # fmt: skip
        assert uncovered(tree, None)[0].startswith("everything")


class TestWarnings:
    def test_budgets_without_a_ledger_file(self, tmp_path):
        """All that have accessed data are counted, whatever the data, also those that exist no more; making one is not counted."""
        budgets = [budget_of() for _ in range(4)]
        for k, budget in enumerate(budgets[:3]):
            assert budget.report().budgets_without_ledger == k
            budget.spend("sum", ACCESS, (np.full(9, k),))
            assert ("This program" in str(budget.report())) == (k > 0)
        assert "without a ledger file" in str(budgets[1].report())
        del budgets[0], budget
        kept = budget_of(ledger=tmp_path / "a.ledger")
        kept.spend("sum", ACCESS)
        for budget in (budgets[0], kept):
            assert budget.report().budgets_without_ledger == 3
            text = " ".join(str(budget.report()).split())
            assert (
                "This program opened 3 budget(s) without a ledger file; if they were spent on the same data, their epsilons add up."
                in text
            )


class TestWhatTheReportSays:
    """About covariates, and parts that are not a sum."""

    @pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
    def test_line_14_public_covariates_are_not_protected(self, adjacency):
        report = budget_of(adjacency=adjacency).report()
        assert "covariates" not in str(report)
        public = replace(report, public_covariates=True)
        words = "outcomes are protected, the covariates are NOT: they are public, and enter plans and posteriors unprotected"
        assert words in " ".join(str(public).split())
        assert PrivacyReport.from_json(public.to_json()) == public

    def test_parts_that_add_up_to_more_than_the_total(self):
        """Of l2 noise: 0.02 + 0.085 + 0.92 at epsilon = 1."""
        plan = [(L2Laplace(x, 4), 1) for x in (0.02, 0.085, 0.92)]
        budget = budget_of()
        budget.spend("start", plan[:1], plan=plan)
        report = budget.report()
        assert report.epsilon <= 1
        text = " ".join(str(report).split())
        assert "composes them to less than their sum, 1.025" in text
        pure = budget_of(delta=0)
        pure.spend("start", plan[:2], plan=plan[:2])
        assert "composes them" not in str(pure.report())
