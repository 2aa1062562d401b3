"""Costs that follow the distance of the proposal: what is charged covers what is done."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.acceptance import Barker, Lazy, Metropolis, Penalty
from pymc_dp.privacy.mechanisms.mechanism import ORDERS, Adjacency, Decision
from pymc_dp.privacy.mechanisms.per_proposal import PerProposalDecision, PerProposalPoissonMinibatch
from pymc_dp.privacy.mechanisms.poisson_minibatch import PoissonMinibatchDecision
from pymc_dp.privacy.mechanisms.subsampled import SampledDecision

DISTANCES = tuple(np.random.default_rng(0).rayleigh(0.1, size=2000).tolist())


def at_order_8(mechanism):
    return float(mechanism.renyi(8.0))


class TestDecisionFamily:
    """Decisions on all records, or on a batch without replacement."""

    @given(distance=st.floats(1e-6, 1e3))
    def test_charges_at_least_the_distance(self, distance):
        family = PerProposalDecision(3.0, Penalty(1.4), None, 1.0, (1.0,))
        charged = family.at(distance).sensitivity
        assert 3.0 * distance + 1e-11 <= charged <= 3.0 * distance * 1.0101 + 1.1e-11

    @given(distance=st.floats(1e-4, 1e2), square=st.floats(0, 10))
    def test_batches(self, distance, square):
        """The estimated variance adds a term that grows with the square of the distance."""
        family = PerProposalDecision(
            3.0, Barker(), None, 1.0, (1.0,), sensitivity_per_square=square, sampling_probability=0.1
        )  # fmt: skip
        charged = family.at(distance)
        needed = 3.0 * distance + square * distance**2
        assert isinstance(charged, SampledDecision)
        assert charged.sampling_probability == 0.1
        assert needed <= charged.sensitivity <= needed * 1.0101 + 1.1e-11

    @given(distance=st.floats(1e-4, 10))
    def test_proportional_noise(self, distance):
        """Noise and charge come from the same rounded distance, so their ratio is the multiplier."""
        decision = PerProposalDecision(2.0, None, 5.0, 1.0, (1.0,)).at(distance)
        assert decision.rule.scale == pytest.approx(5.0 * decision.sensitivity)

    @pytest.mark.parametrize("multiplier, part", [(1e-6, 1.0), (0.5, 0.1), (5.0, 1.0), (1e6, 0.1)])
    def test_moves_of_any_length(self, multiplier, part):
        """Each has a decision, and a cost that is no more than that of the noisy log-ratio."""
        family = PerProposalDecision(2.0, None, multiplier, 1.0, (1.0,), sampling_probability=part)
        for distance in (5e-324, 1e-300, 1e-12, 1e-3, 1.0, 1e4, 1e9, 1e300, 1.7e308):
            decision = family.at(distance)
            mu = decision.sensitivity / decision.rule.scale
            cost = decision.renyi(ORDERS)
            assert np.all((cost > 0) & (cost <= 0.5 * mu**2 * ORDERS * (1 + 1e-9)))
            for log_ratio in (-1e300, 0.0, 1e300):
                assert 0 <= decision.rule.probability(log_ratio) <= 1

    def test_has_no_bound_without_a_distance(self):
        family = PerProposalDecision(3.0, Penalty(1.4), None, 0.5, (0.1, 0.2))
        assert np.all(np.isinf(family.renyi(ORDERS)))
        low, high = at_order_8(family.at(0.1)), at_order_8(family.at(0.2))
        assert low < family.mean_price(at_order_8) < high
        assert isinstance(family.at(0.1).rule, Lazy)

    def test_needs_one_rule(self):
        for noise in ((None, None), (Penalty(1.0), 2.0)):
            with pytest.raises(ValueError, match="exactly one"):
                PerProposalDecision(1.0, *noise, 1.0, (1.0,))

    def test_adjacency(self):
        """A batch of fixed size is proved for substitution only."""
        assert PerProposalDecision(1.0, Barker(), None, 1.0, (1.0,)).adjacencies == set(Adjacency)
        batch = PerProposalDecision(1.0, Barker(), None, 1.0, (1.0,), sampling_probability=0.5)
        assert batch.adjacencies == {Adjacency.SUBSTITUTE}
        assert "on a batch without replacement, probability 0.5" in batch.name


def fast(**kwargs):
    settings = {
        "bound_per_distance": 0.02,
        "rule": Barker(),
        "batch_rate": 300.0,
        "n_records": 10_000,
        "full_batch_at": None,
        "distances": DISTANCES,
    }
    return PerProposalPoissonMinibatch(**settings | kwargs)


class TestPoissonMinibatchFamily:
    """Decisions of DP-Fast MH."""

    @given(distance=st.floats(1e-6, 2.0))
    def test_bound_covers_the_distance(self, distance):
        """Rounded up by 2 % at most, but no smaller than a twentieth of what is typical."""
        decision = fast().at(distance)
        assert isinstance(decision, PoissonMinibatchDecision)
        least = 0.05 * math.sqrt(np.mean(np.square(DISTANCES)))
        needed = 0.02 * max(distance, least)
        assert needed < decision.log_ratio_bound <= needed * 1.0201 + 1.1e-11

    def test_few_different_prices(self):
        family = fast()
        assert len({family.at(m) for m in DISTANCES}) < 250

    def test_all_records_where_a_batch_makes_no_sense(self):
        """A public matter, as both follow from the distance; the cost is that of all records."""
        assert isinstance(fast().at(40.0), PoissonMinibatchDecision)
        far = fast().at(49.0)  # 300 + 10 000 * 0.98 places
        assert far == Decision(Barker(), far.sensitivity)
        assert 2 * 0.02 * 49 <= far.sensitivity <= 2 * 0.02 * 49 * 1.0201
        assert isinstance(fast(batch_rate=0.5).at(10.0), Decision)  # odds of up to 4000
        assert isinstance(fast(batch_rate=20_000.0).at(0.1), Decision)

    def test_the_offset_of_a_large_prior_is_covered(self):
        """What rounding adds where the prior is huge is part of the bound."""
        assert fast().at(0.1, 1e12).log_ratio_bound >= 0.02 * 0.1 + 1e-3

    def test_mean_cost(self):
        family = fast()
        exact = np.mean([at_order_8(family.at(m)) for m in DISTANCES[::20]])
        assert family.mean_price(at_order_8) == pytest.approx(exact, rel=0.15)
        assert np.all(np.isinf(family.renyi(8.0)))

    def test_adjacency_and_name(self):
        assert fast().adjacencies == {Adjacency.SUBSTITUTE}
        assert "varying with the proposal" in fast().name

    def test_refuses_what_its_decisions_refuse(self):
        with pytest.raises(ValueError, match="positive and finite"):
            fast(bound_per_distance=0.0)
        with pytest.raises(ValueError, match="not known here"):
            fast(rule=Lazy(Metropolis(), 0.5))
