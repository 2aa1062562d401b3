"""Records on the workers of a cluster: the same whole numbers, also if workers die."""

import copy
import os
import pickle
import signal
import threading
import time

from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

import pymc_dp as dp

from pymc_dp.data import Records, Shards
from pymc_dp.model import BlockedLikelihood
from tests.data.mixed_columns import columns, fed, model
from tests.model.test_blocked_likelihood import assert_equal, reduced

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

N, D = 2003, 3
COLUMNS = columns(N, D)
MODEL = fed(model, COLUMNS)


@pytest.fixture(scope="module")
def client():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:  # fmt: skip
        with distributed.Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def in_memory():
    return BlockedLikelihood(MODEL, Records(COLUMNS))


@pytest.fixture(scope="module")
def sharded(client):
    return BlockedLikelihood(MODEL, Shards(Records(COLUMNS).split(7), client=client))


@pytest.mark.parametrize("n_shards", [1, 2, 64])
def test_any_number_of_shards(client, sharded, in_memory, n_shards):
    sharded.records, before = (
        Shards(Records(COLUMNS).split(n_shards), client=client),
        sharded.records,
    )
    try:
        assert_equal(reduced(sharded), reduced(in_memory))
    finally:
        sharded.records = before


@contextmanager
def killer(client, n=2, seed=1):
    """Kill a worker, some time after the other; the list of those that were killed.

    Not more than two: a task that three workers died with is given up by the scheduler, as it may be the cause.
    """
    stop, killed, rng = threading.Event(), [], np.random.default_rng(seed)

    def kill():
        while len(killed) < n and not stop.wait(rng.uniform(0.1, 0.6)):
            pids = [*client.run(os.getpid, on_error="ignore").values()]
            os.kill(pids[rng.integers(len(pids))], signal.SIGKILL)
            killed.append(pids)
            time.sleep(4.0)  # until there is another one

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def test_workers_that_are_killed(client, sharded, in_memory):
    """They cost time only: what they held is loaded again by others."""
    expected = reduced(in_memory)
    with killer(client) as killed:
        while len(killed) < 2:
            assert_equal(reduced(sharded), expected)
    assert_equal(reduced(sharded), expected)


def test_a_release_while_a_worker_is_killed(client):
    """The same is spent, and the same sums are released, but for their noise."""
    found = []
    for kills in (0, 1):
        shards = Shards(Records(COLUMNS).split(5), client=client)
        simulator = dp.Simulator(MODEL, data=shards, covariates="public")
        budget = dp.PrivacyBudget(epsilon=1e6, delta=1e-5, chains=1)
        with killer(client, kills) as killed:
            scores = dp.private_scores(simulator, budget=budget, random_seed=1)
            while len(killed) < kills:
                shards.map(_rows)
        found.append((scores.releases[0], budget.report(), len(budget.ledger.claims())))
    (one, report, n_claims), (two, again, n_again) = found
    np.testing.assert_array_equal(one.term.theta, two.term.theta)
    assert np.abs(one.total - two.total).max() < 10 * one.noise_sd
    assert (report.epsilon, n_claims) == (again.epsilon, n_again) and n_claims >= 1


def _rows(records, _):
    return records.n_records


def test_partitions_and_delayed_tables(client):
    dask = pytest.importorskip("dask")
    from dask import array, dataframe

    table = pd.DataFrame({f"x{k}": COLUMNS["x"][:, k] for k in range(D)} | {"group": COLUMNS["group"], "y": COLUMNS["y"]})  # fmt: skip
    arguments = {"x": [f"x{k}" for k in range(D)], "group": "group", "y": "y"}
    parts = [dask.delayed(table.iloc[a : a + 700]) for a in range(0, N, 700)]
    whole = dataframe.from_pandas(table, npartitions=3, sort=False)
    empty = dataframe.concat([whole[whole.y > 1], whole])
    arrays = {n: array.from_array(c, chunks=(600, *[2] * (c.ndim - 1))) for n, c in COLUMNS.items()}
    arrays["y"] = arrays["y"].rechunk(350)
    for source in (whole, empty, parts, arrays):
        options = {} if source is arrays else {"arguments": arguments}
        shards = Shards(source, client=client, **options)
        assert shards.n_records == N and "shards; x: float64 (3,)" in repr(shards)  # fmt: skip
        index = [5, 2000, 5, 711]
        taken = shards.take(index)
        for name, column in COLUMNS.items():
            np.testing.assert_array_equal(taken[name], column[index])


def test_the_current_client_or_a_new_cluster(client, monkeypatch):
    pieces = Records(COLUMNS).split(2)
    assert Shards(pieces).client is client

    def none():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "get_client", none)
    own = Shards(pieces)
    with own.client as made:
        assert made is not client and own.n_records == N and len(made.scheduler_info()["workers"]) > 0  # fmt: skip


def test_what_is_wrong(client):
    good, bad = Records({"x": np.ones(10)}), Records({"x": np.ones(10, int)})
    with pytest.raises(ValueError, match="Shards 0 and 2 have different columns"):
        Shards([good, good, bad], client=client)
    with pytest.raises(ValueError, match="no shards"):
        Shards([], client=client)
    with pytest.raises(TypeError, match="got a list of ndarray"):
        Shards([np.ones(3)], client=client)
    with pytest.raises(TypeError, match="'x' is no Dask array, but a ndarray"):
        Shards({"x": np.ones(3)}, client=client)
    elsewhere = pickle.loads(pickle.dumps(Shards([good], client=client)))
    assert elsewhere.n_records == 10 and elsewhere.client is None
    for copied in (elsewhere, copy.copy(Shards([good], client=client))):
        with pytest.raises(RuntimeError, match="without a connection"):
            copied.take([1])
