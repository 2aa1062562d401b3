"""Proposals: symmetric, blind to everything but the state, with the distances and caps they promise."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from scipy import stats

from pymc_dp import GuidedWalk, OneComponent, RandomWalk

#: False alarms: each Kolmogorov-Smirnov test fails by chance with this probability; seeds are fixed.
LIMIT = 1e-5
COV = np.array([[0.5, 0.2, 0.0], [0.2, 0.3, -0.1], [0.0, -0.1, 0.4]])
SCALES = np.array([0.5, 2.0, 0.1])
UNITS = np.array([1.0, 10.0, 0.2])

#: Name, proposal for three parameters, covariance of its Gaussian, vector of units of its distance (or None).
GAUSSIANS = {
    "scalar": (RandomWalk(0.7), 0.49 * np.eye(3)),
    "vector": (RandomWalk(SCALES), np.diag(SCALES**2)),
    "matrix": (RandomWalk(COV), COV),
    "list": (RandomWalk([1, 2, 3]), np.diag([1.0, 4.0, 9.0])),
}
#: Each kind with each form of its scale, each metric, and with a cap.
ALL = [
    RandomWalk(0.7, metric="proposal"),
    RandomWalk(SCALES, metric=UNITS, max_distance=1.0),
    RandomWalk(COV, metric="proposal", max_distance=1.0),
    OneComponent(0.7, max_distance=1.0),
    OneComponent(SCALES, metric="proposal"),
    GuidedWalk(0.7, metric=UNITS),
    GuidedWalk(SCALES, metric="proposal", max_distance=1.0),
]


def describe(proposal):
    metric = proposal.metric if isinstance(proposal.metric, str) else "vector"
    return f"{type(proposal).__name__}-{np.ndim(proposal.scale)}d-{metric}-{proposal.max_distance}"


def distance(proposal, old, new):
    """The distance in each metric, from its definition and the two states alone."""
    move = np.asarray(new) - np.asarray(old)
    if isinstance(proposal.metric, str) and proposal.metric == "euclidean":
        return math.sqrt(sum(m**2 for m in move))
    if isinstance(proposal.metric, str):
        scale = np.asarray(proposal.scale, dtype=float)
        precision = np.linalg.inv(
            scale if scale.ndim == 2 else np.diag(np.broadcast_to(scale, 3) ** 2)
        )
        return math.sqrt(move @ precision @ move)
    return math.sqrt(sum((m / u) ** 2 for m, u in zip(move, proposal.metric, strict=True)))


def moves(proposal, n, seed=0, theta=(0.0, 0.0, 0.0)):
    walk, rng = proposal.start(3), np.random.default_rng(seed)
    return np.array([walk.propose(np.array(theta), rng)[0] - theta for _ in range(n)])


each_kind = pytest.mark.parametrize("kind", [RandomWalk, OneComponent, GuidedWalk])


@pytest.mark.parametrize("proposal", ALL, ids=describe)
class TestContract:
    """What every proposal must keep."""

    def test_distance(self, proposal):
        """As defined, positive, symmetric, within the cap; and the old state is left alone."""
        walk, rng = proposal.start(3), np.random.default_rng(1)
        for _ in range(200):
            theta = rng.normal(size=3)
            before = theta.copy()
            new, reported = walk.propose(theta, rng)
            assert np.array_equal(theta, before)
            assert new.shape == (3,)
            assert new.dtype == np.float64
            assert not np.shares_memory(new, theta)
            assert isinstance(reported, float)
            assert reported == pytest.approx(distance(proposal, theta, new), rel=1e-9)
            assert reported == pytest.approx(distance(proposal, new, theta), rel=1e-9)
            assert 0 < reported <= (proposal.max_distance or math.inf)

    def test_same_law_everywhere(self, proposal):
        """A move is added to the state: its law knows nothing of where it starts."""
        assert np.allclose(
            moves(proposal, 50), moves(proposal, 50, theta=(3.0, -40.0, 0.25)), atol=1e-12
        )

    def test_there_and_back(self, proposal):
        """Moves and reversed moves have the same law: with the test above, q(x, y) = q(y, x)."""
        if isinstance(proposal, GuidedWalk):
            # Over the uniform law of the directions.
            there, back = (
                np.concatenate([moves(proposal, 1, seed=s) for s in range(first, first + 1500)])
                for first in (0, 1500)
            )
        else:
            there, back = moves(proposal, 3000, seed=2), moves(proposal, 3000, seed=3)
        for direction in (*np.eye(3), [1.0, 1.0, 1.0], [1.0, -2.0, 5.0]):
            a, b = there @ np.array(direction), -back @ np.array(direction)
            if isinstance(proposal, RandomWalk):
                assert stats.ks_2samp(a, b).pvalue > LIMIT
            else:  # most entries are 0: compare the moves themselves, and how many there are
                assert stats.ks_2samp(a[a != 0], b[b != 0]).pvalue > LIMIT
                assert stats.binomtest(int((a > 0).sum()), int((a != 0).sum())).pvalue > LIMIT

    def test_start_is_fresh(self, proposal):
        """Each chain has its own walk, which can be copied and pickled; the proposal is a description only."""
        before = copy.deepcopy(vars(proposal))
        first, second = proposal.start(3), proposal.start(3)
        assert first is not second
        assert first is not proposal
        for _ in range(3):
            first.propose(np.zeros(3), np.random.default_rng(0))
            first.decided(False)
        assert all(np.array_equal(vars(proposal)[k], v) for k, v in before.items())
        for walk in (
            second,
            copy.copy(second),
            pickle.loads(pickle.dumps(second)),
            proposal.start(3),
        ):
            new, length = walk.propose(np.zeros(3), np.random.default_rng(5))
            expected = proposal.start(3).propose(np.zeros(3), np.random.default_rng(5))
            assert np.array_equal(new, expected[0])
            assert length == expected[1]


@pytest.mark.parametrize("name", GAUSSIANS)
def test_random_walk_is_gaussian(name):
    """Covariance and law, also of the distance in standard deviations: chi with d degrees of freedom."""
    proposal, cov = GAUSSIANS[name]
    sample = moves(proposal, 5000, seed=4)
    for direction in (*np.eye(3), np.array([1.0, -1.0, 2.0]), np.array([1.0, 3.0, -1.0])):
        sd = math.sqrt(direction @ cov @ direction)
        assert stats.kstest(sample @ direction, stats.norm(scale=sd).cdf).pvalue > LIMIT
    walk, rng = RandomWalk(proposal.scale, metric="proposal").start(3), np.random.default_rng(5)
    lengths = [walk.propose(np.zeros(3), rng)[1] for _ in range(3000)]
    assert stats.kstest(lengths, stats.chi(3).cdf).pvalue > LIMIT


def test_cap_truncates_the_law():
    """Redrawing gives the Gaussian conditional on the length, not a pile at the cap."""
    cap = 1.2
    walk, rng = (
        RandomWalk(COV, metric="proposal", max_distance=cap).start(3),
        np.random.default_rng(6),
    )
    lengths = [walk.propose(np.zeros(3), rng)[1] for _ in range(3000)]
    law = stats.chi(3)
    assert stats.kstest(lengths, lambda x: np.minimum(law.cdf(x) / law.cdf(cap), 1)).pvalue > LIMIT
    walk = OneComponent(2.0, max_distance=cap).start(1)
    lengths = [walk.propose(np.zeros(1), rng)[1] for _ in range(3000)]
    law = stats.halfnorm(scale=2.0)
    assert stats.kstest(lengths, lambda x: np.minimum(law.cdf(x) / law.cdf(cap), 1)).pvalue > LIMIT


@pytest.mark.parametrize("kind", [OneComponent, GuidedWalk])
def test_one_component_at_a_time(kind):
    """One uniformly chosen parameter moves, by a (half-)normal step of its own scale."""
    sample = np.concatenate([moves(kind(SCALES), 100, seed=s) for s in range(40)])
    assert np.all((sample != 0).sum(axis=1) == 1)
    moved = np.argmax(sample != 0, axis=1)
    assert stats.chisquare(np.bincount(moved, minlength=3)).pvalue > LIMIT
    for j in range(3):
        assert (
            stats.kstest(np.abs(sample[moved == j, j]), stats.halfnorm(scale=SCALES[j]).cdf).pvalue
            > LIMIT
        )


class TestDirections:
    """The guided walk's directions: uniform at the start, then a function of the outcomes."""

    def test_start(self):
        """Uniform and independent over parameters."""
        signs = np.array([self.begin(s)[0]._signs for s in range(800)])
        assert set(np.unique(signs)) == {-1.0, 1.0}
        patterns = np.bincount(((signs + 1) / 2 @ [1, 2, 4]).astype(int), minlength=8)
        assert stats.chisquare(patterns).pvalue > LIMIT

    @staticmethod
    def begin(seed):
        walk, rng = GuidedWalk(1.0).start(3), np.random.default_rng(seed)
        walk.propose(np.zeros(3), rng)
        return walk, rng

    def test_kept_after_acceptance_turned_after_rejection(self):
        """Seen from outside: the signs of successive moves of each parameter."""
        walk, rng = GuidedWalk(SCALES).start(3), np.random.default_rng(8)
        expected, turned = {}, 0
        for _ in range(500):
            new, _ = walk.propose(np.zeros(3), rng)
            j = int(np.flatnonzero(new)[0])
            sign = np.sign(new[j])
            assert expected.get(j, sign) == sign
            accepted = bool(rng.random() < 0.5)
            walk.decided(accepted)
            expected[j] = sign if accepted else -sign
            turned += not accepted
        assert turned > 100

    def test_redrawing_keeps_the_direction(self):
        """Moves beyond the cap are redrawn on the same side: the length alone is truncated."""
        walk, rng = GuidedWalk(1.0, max_distance=0.1).start(1), np.random.default_rng(9)
        sides = set()
        for _ in range(50):
            new, length = walk.propose(np.zeros(1), rng)
            assert length <= 0.1
            sides.add(float(np.sign(new[0])))
            walk.decided(True)
        assert len(sides) == 1

    def test_extended_walk_keeps_the_uniform_law(self):
        """On a ring of states, with the rule of the walk itself, the extended law is invariant: computed exactly.

        With the directions flipped always the same computation fails.
        """
        rng = np.random.default_rng(10)
        density = rng.random(12)
        density /= density.sum()
        step = rng.random(5)
        step /= step.sum()

        def invariant(after_acceptance, after_rejection):
            flow = np.zeros((12, 2))
            for i in range(12):
                for k, sign in enumerate((-1, 1)):
                    for length, q in enumerate(step, start=1):
                        j = (i + sign * length) % 12
                        a = min(1.0, density[j] / density[i])
                        for state, p, turn in (
                            (j, a, after_acceptance),
                            (i, 1 - a, after_rejection),
                        ):
                            flow[state, (k + turn) % 2] += density[i] / 2 * q * p
            return np.allclose(flow, density[:, None] / 2, atol=1e-14)

        walk, _ = self.begin(0)
        turns = []
        for accepted in (True, False):
            before = walk._signs.copy()
            walk.decided(accepted)
            turns.append(int((walk._signs != before).sum()))
        assert turns == [0, 1]
        assert invariant(*turns)
        assert not invariant(1, 1)
        assert not invariant(0, 0)


class TestRefusals:
    """Errors name what was wrong and what would be right."""

    @each_kind
    def test_numbers(self, kind):
        """Of caps: `test_mechanism_properties`."""
        for scale in (0.0, -1.0, math.nan, math.inf, [1.0, 0.0, 1.0], [1.0, math.nan, 1.0]):
            with pytest.raises(ValueError, match="scale of the proposal must be positive and"):
                kind(scale).start(3)
        covariance = [] if kind is RandomWalk else [(3, 3)]
        for shape in ((2,), (1,), (2, 2), (3, 2), (1, 3), (3, 3, 3), *covariance):
            with pytest.raises(ValueError, match=r"length.* 3 \(the parameters .* shape is \("):
                kind(np.ones(shape)).start(3)

    @each_kind
    def test_metric(self, kind):
        with pytest.raises(
            ValueError,
            match="Unknown metric 'manhattan'; choose 'euclidean', 'proposal' or a vector",
        ):
            kind(1.0, metric="manhattan")
        for metric in (np.ones(2), np.ones((3, 3))):
            with pytest.raises(ValueError, match=r"metric must be .* length 3 .*its shape is \("):
                kind(1.0, metric=metric).start(3)
        for metric in (np.zeros(3), [1.0, -1.0, 1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0]):
            with pytest.raises(ValueError, match="metric must be positive and finite"):
                kind(1.0, metric=metric).start(3)

    def test_covariance(self):
        with pytest.raises(ValueError, match="must be symmetric"):
            RandomWalk([[1.0, 0.5], [0.0, 1.0]]).start(2)
        for bad in ([[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]):
            with pytest.raises(ValueError, match="must be positive definite"):
                RandomWalk(bad).start(2)
        with pytest.raises(ValueError, match="positive and finite"):
            RandomWalk([[1.0, 0.0], [0.0, math.nan]]).start(2)

    @each_kind
    def test_cap_that_is_never_met(self, kind):
        walk = kind(1.0, max_distance=1e-9).start(3)
        with pytest.raises(
            ValueError,
            match=r"10000 proposals .* longer than max_distance = 1e-09.*Raise the cap or shrink",
        ):
            walk.propose(np.zeros(3), np.random.default_rng(0))

    def test_moves_below_the_last_digit(self):
        """A move that rounding swallows has no length: refused, not charged as nothing."""
        with pytest.raises(ValueError, match="length 0"):
            OneComponent(1e-3).start(1).propose(np.array([1e30]), np.random.default_rng(0))
