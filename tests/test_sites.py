"""Sums over several sites: of shares that are uniform, and nothing else is answered (that they are exact: `test_golden`)."""

import copy
import json
import math
import multiprocessing
import pickle
import threading

from contextlib import contextmanager

import numpy as np
import pymc as pm
import pytest

from pytensor.compile.mode import Mode
from scipy import stats

import pymc_dp as dp

from pymc_dp.data import Records, Sites
from pymc_dp.data.several_sites import receive, send
from pymc_dp.errors import ModelError
from pymc_dp.model import BlockedLikelihood, ClippedScores, ScoreNorms, ScoreProducts
from pymc_dp.model.data_keys import KeyedDigest
from pymc_dp.privacy.mechanisms.noise_law import NoiseLaw
from pymc_dp.privacy.randomness.bits import SeededBits
from pymc_dp.sites import Site
from tests.data.mixed_columns import columns, fed
from tests.data.mixed_columns import model as function
from tests.terms import clipped_grad_steps, norm_counts

N, D, N_SITES = 203, 2, 4
MODE = {"mode": Mode("py", "fast_compile")}
COLUMNS = columns(N, D)
MODEL = fed(function, COLUMNS)


class Tapped:
    """A connection whose received messages are kept."""

    def __init__(self, connection):
        self._connection, self.received = connection, []

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def recv_bytes(self):
        self.received.append(self._connection.recv_bytes())
        return self.received[-1]


@contextmanager
def served(parts, model=MODEL, **options):
    """Connections of a coordinator to sites, each in a thread, which have ended afterwards."""
    numbers = range(len(parts))
    between = {(i, j): multiprocessing.Pipe() for i in numbers for j in numbers if i < j}
    coordinator, threads = [], []
    for k in numbers:
        peers = {j: between[min(j, k), max(j, k)][j < k] for j in numbers if j != k}
        how = {"compile_kwargs": MODE, "timeout": 600.0} | options
        site = Site(model, parts[k], peers, number=k, **how)
        ours, theirs = multiprocessing.Pipe()
        coordinator.append(Tapped(ours))
        threads.append(threading.Thread(target=site.serve, args=(theirs,)))
        threads[-1].start()
    try:
        yield coordinator
    finally:
        for connection, thread in zip(coordinator, threads, strict=True):
            connection.close()
            thread.join(30.0)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def connections():
    with served(Records(COLUMNS, block_rows=64).split(N_SITES)) as found:
        yield found


@pytest.fixture(scope="module")
def likelihood(connections):
    return BlockedLikelihood(MODEL, Sites(connections, timeout=600.0), compile_kwargs=MODE)


def shares(connections, sites, n=150):
    """What the coordinator gets in answer to one and the same question, shape (n, n_sites), and the sums."""
    for connection in connections:
        connection.received.clear()
    sums = [
        int(sites.total("ScoreNorms", np.zeros(D + 2), np.eye(D + 2), np.zeros(0))[0])
        for _ in range(n)
    ]
    texts = ([*map(_share, connection.received)] for connection in connections)
    return np.array([*texts], dtype=np.uint64).T, sums


def _share(content):
    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(content)
    _, (share, kind) = receive(theirs, 1.0)
    assert kind is None
    return share[0]


def least_p_value(found):
    """Of single answers, and of the sums of those of each two and three sites: all uniform."""
    uniform = []
    for subset in range(1, 2**N_SITES - 1):
        members = [k for k in range(N_SITES) if subset >> k & 1]
        total = found[:, members].sum(axis=1, dtype=np.uint64)
        uniform += [total / 2.0**64, (total << np.uint64(48)) / 2.0**64]  # high and low bits
    return min(stats.kstest(u, "uniform").pvalue for u in uniform)


def test_what_the_coordinator_gets_is_uniform_but_for_its_total(connections, likelihood):
    found, sums = shares(connections, likelihood.records)
    assert set(sums) == {N} and len(np.unique(found)) == found.size
    assert least_p_value(found) > 1e-6


@pytest.mark.slow
def test_shares_that_are_not_random_are_found(connections, likelihood, monkeypatch):
    """Control: a generator whose top byte is small."""
    monkeypatch.setattr("pymc_dp.sites.os.urandom", lambda n: np.random.default_rng().bytes(n - 1) + b"\0")  # fmt: skip
    found, sums = shares(connections, likelihood.records)
    assert set(sums) == {N}
    assert least_p_value(found) < 1e-6


@pytest.fixture(scope="module")
def noisy_likelihood():
    with served(Records(COLUMNS, block_rows=64).split(N_SITES), adds_noise=True) as found:
        yield BlockedLikelihood(MODEL, Sites(found, timeout=600.0), compile_kwargs=MODE)


QUESTIONS = {
    "scores": ClippedScores(np.full(D + 2, 0.2), 0.7),
    "products": ScoreProducts(np.full(D + 2, 0.2), np.eye(D + 2)[:, :2], 1.1),
    "norms": ScoreNorms(np.full(D + 2, 0.2), np.eye(D + 2), np.array([0.1, 0.5])),
}


#: Of the noise, above the least for all questions, of which a record changes 1.4 to 1.7.
SCALE = 2.0


def standardized(noisy, exact, question, n=150):
    """Differences of noisy sums from the exact one, in standard deviations that are asked for."""
    term, bits = QUESTIONS[question], SeededBits(np.random.default_rng(1))
    law = NoiseLaw("gaussian", SCALE, term.n_dim)
    sums = np.array([noisy.noisy(term, law, bits) for _ in range(n)])
    return (sums - np.ldexp(exact.total(term).astype(float), term.exponent)) / law.scale


@pytest.mark.parametrize("question", QUESTIONS)
def test_noise_of_sites_has_the_law_that_is_asked_for(noisy_likelihood, likelihood, question):
    found = standardized(noisy_likelihood, likelihood, question)
    if question == "norms":  # rounded to whole numbers
        edges = (np.arange(-3, 4) + 0.5) / SCALE
        expected = found.size * np.diff([0.0, *stats.norm().cdf(edges), 1.0])
        counts = np.histogram(found, [-np.inf, *edges, np.inf])[0]
        assert stats.chisquare(counts, expected).pvalue > 1e-6
    else:
        assert stats.kstest(found.reshape(-1), stats.norm().cdf).pvalue > 1e-6


@pytest.mark.parametrize("question", QUESTIONS)
def test_line_7_sites_refuse_less_than_the_least_noise(noisy_likelihood, question):
    """At a scale of 1e-12 the answer was the exact sum."""
    sensitivity = {"scores": 1.4, "products": math.sqrt(2) * 1.21, "norms": math.sqrt(2)}[question]
    for scale in (1e-12, 0.999 * sensitivity, math.inf, math.nan, -3.0, 1.001 * sensitivity):
        law, bits = NoiseLaw("gaussian", scale, 1), SeededBits(np.random.default_rng(1))
        if sensitivity < scale < math.inf:
            noisy_likelihood.noisy(QUESTIONS[question], law, bits)
        else:
            with pytest.raises(ValueError, match="at least 1 times the change by a record"):
                noisy_likelihood.noisy(QUESTIONS[question], law, bits)


def test_line_7_digests_of_sites_do_not_show_which_columns_are_equal():
    equal = {"x": np.arange(20.0), "y": np.arange(20.0), "z": np.ones(20)}
    found = []
    for data in (equal, equal | {"y": equal["y"] + 1}):
        site = object.__new__(Site)
        site._records, site._new_digest = Records(data), KeyedDigest(bytes(32))
        found.append(json.loads(site._answer("digests", [])[1]))
        assert len(set(found[-1].values())) == 3
    assert found[0]["x"] == found[1]["x"] and found[0]["y"] != found[1]["y"]


@pytest.mark.slow
def test_too_little_noise_of_a_site_is_found(noisy_likelihood, likelihood, monkeypatch):
    """Control: each site takes itself for one of sixteen."""
    right = Site._with_noise
    monkeypatch.setattr(Site, "_with_noise", lambda self, steps, scale, term: right(self, steps, scale / 2, term))  # fmt: skip
    found = standardized(noisy_likelihood, likelihood, "scores")
    assert stats.kstest(found.reshape(-1), stats.norm().cdf).pvalue < 1e-6


def test_sites_that_add_noise_tell_nothing_without_it(noisy_likelihood, likelihood):
    theta = np.zeros(D + 2)
    for ask in (
        lambda: clipped_grad_steps(noisy_likelihood, theta, 1.0),
        lambda: noisy_likelihood.clipped_change(theta, theta + 1, 0.3),
    ):
        with pytest.raises(ValueError, match="tells no sum without it"):
            ask()
    with pytest.raises(ValueError, match="DPScore"):
        noisy_likelihood.check_reachable()
    with pytest.raises(ValueError, match="Gaussian noise only"):
        noisy_likelihood.noisy(QUESTIONS["scores"], NoiseLaw("l2", 1.0, D + 2), None)
    with likelihood.records.adding(NoiseLaw("gaussian", 1.0, D + 2)):
        with pytest.raises(ModelError, match="ValueError at a site"):
            clipped_grad_steps(likelihood, theta, 1.0)


def test_what_sites_do_not_tell(connections, likelihood):
    theta = np.zeros(D + 2)
    with pytest.raises(ValueError, match="sampler that reads all records"):
        likelihood.clipped_grad(theta, 1.0, np.array([3]))
    for index in (np.array([3]), np.zeros(0, int)):
        with pytest.raises(ValueError, match="sampler that reads all records"):
            likelihood.logp_at(theta, index)
    with pytest.raises(ValueError, match="finite clip bound"):
        likelihood.clipped_change(theta, theta + 1, np.inf)
    with pytest.raises(ValueError, match="do not show rows"):
        likelihood.records.take([3])
    for word in ("logp", "Ball", "__reduce__", "LogLikelihoods"):
        send(connections[0], word, theta)
        found, (why,) = receive(connections[0], 60.0)
        assert found == "refused" and why.startswith("A site answers") and why.endswith(f"not {word}.")  # fmt: skip


def test_an_error_at_a_site_tells_no_value_and_ends_nothing(likelihood):
    theta, matrix = np.zeros(D + 2), np.eye(D + 2)
    for arguments in (
        (theta, matrix, "4321"),
        (theta[1:], matrix[1:], 4321.0),
        (theta, matrix, 4321.0, 1),
    ):
        with pytest.raises(ValueError, match="cannot make a ScoreProducts") as caught:
            likelihood.records.total("ScoreProducts", *arguments)
        assert "4321" not in str(caught.value)
    with pytest.raises(ValueError, match="finite bound"):
        likelihood.records.total("ClippedScores", theta, math.inf)
    assert norm_counts(likelihood, theta, matrix, np.zeros(0)).tolist() == [N]


@pytest.mark.slow
def test_columns_that_differ(connections):
    narrow = Records(COLUMNS | {"y": COLUMNS["y"].astype(np.int64)})
    with served([Records(COLUMNS), narrow]) as found:
        with pytest.raises(ValueError, match="Sites 0 and 1 differ"):
            Sites(found)
    with pytest.raises(ValueError, match="two sites or more"):
        Sites(connections[:1])
    with pytest.raises(ValueError, match="peers with other numbers"):
        Site(MODEL, narrow, {2: connections[0]}, number=2)


def test_the_same_data_are_known_again(connections, likelihood):
    again = BlockedLikelihood(MODEL, Sites(connections), compile_kwargs=MODE)
    assert again.row_keys == likelihood.row_keys
    assert again.n_records == N and f"{N} records at {N_SITES} sites" in repr(again)


def test_a_site_that_does_not_answer():
    ours, theirs = multiprocessing.Pipe()
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        Sites([ours, ours], timeout=0.01)
    theirs.close()
    with pytest.raises((EOFError, OSError)):
        Sites([ours, ours], timeout=0.01)


def test_answers_to_an_interrupted_question_are_not_taken_for_others(connections, monkeypatch):
    sites = Sites(connections)
    with monkeypatch.context() as patch:
        patch.setattr(connections[2], "poll", lambda timeout: False, raising=False)
        with pytest.raises(TimeoutError):
            sites.total("n_records")
    with pytest.raises(RuntimeError, match="connect to the sites anew"):
        sites.total("n_records")
    for connection in connections:
        while connection.poll(0.3):
            connection.recv_bytes()
    assert Sites(connections).n_records == N


def test_a_copy_is_not_taken_for_records(likelihood, tmp_path, quick_scores):
    """Its sums would be 0: it is refused, and before anything is paid for."""
    copied = copy.copy(likelihood)
    copied.records = pickle.loads(pickle.dumps(likelihood.records))
    for ask in (
        copied.check_reachable,
        lambda: copied.clipped_change(np.ones(D + 2), np.zeros(D + 2), 0.3),
        lambda: norm_counts(copied, np.zeros(D + 2), np.eye(D + 2), np.ones(1)),
    ):
        with pytest.raises(RuntimeError, match="copy"):
            ask()
    data = {"data": likelihood.records, "covariates": stand_in(), "compile_kwargs": MODE}
    simulator = dp.Simulator(MODEL, **data)
    simulator.likelihood = copied
    budget = dp.PrivacyBudget(1.0, 1e-5, chains=1, ledger=tmp_path / "a.ledger")
    plan = dp.plan(budget=budget, simulator=simulator)
    for spend in (plan.release, lambda: dp.scores.private_start(simulator, budget=budget)):
        with pytest.raises(RuntimeError, match="copy"):
            spend()
    assert not budget.ledger.claims()


def stand_in():
    with pm.Model() as found:
        x = np.random.default_rng(4).normal(size=(500, D))
        function(x, np.arange(500) % 2, np.arange(500) % 3 % 2)
    return found


@pytest.mark.slow
def test_chains_in_other_processes_are_refused_before_they_pay(likelihood):
    budget = dp.PrivacyBudget(epsilon=5, delta=1e-5, chains=2)
    with likelihood.model:
        step = dp.DPPenalty(likelihood=likelihood, budget=budget, clip_bound=1.0, proposal=dp.RandomWalk(0.1))  # fmt: skip
        for context in ("fork", "spawn"):
            with pytest.raises(Exception, match="cores=1"):
                pm.sample(draws=5, tune=0, chains=2, cores=2, mp_ctx=context, step=step, callback=budget, progressbar=False)  # fmt: skip
    assert not budget.ledger.claims()


@pytest.mark.slow
def test_plans_have_noise_that_sites_can_add(noisy_likelihood):
    plan = dp.plan(epsilon=1, delta=1e-5, model=MODEL, data=noisy_likelihood.records, covariates=stand_in())  # fmt: skip
    assert "Gaussian" in str(plan) and "l2 noise" not in str(plan)
    with pytest.raises(ValueError, match="add Gaussian noise"):
        dp.plan(epsilon=1, delta=1e-5, noise="l2", model=MODEL, data=noisy_likelihood.records, covariates=stand_in())  # fmt: skip
    with pytest.raises(ValueError, match=r"at least 1 times.*Nothing was accessed"):
        dp.sample(epsilon=1000.0, delta=1e-5, model=MODEL, data=noisy_likelihood.records, covariates=stand_in())  # fmt: skip
