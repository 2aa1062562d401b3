"""Four hospitals, one posterior: no hospital shows a patient, or a sum over its own patients.

Each hospital is a process with its own records (simulated here). The coordinator is a fifth one: it has the model and
made-up covariates, gets sums over all 5000 patients, adds noise and spends the budget. Here they are connected by
pipes; ``multiprocessing.connection.Listener`` and ``Client`` connect machines.
"""

import itertools
import multiprocessing

import numpy as np
import pymc as pm

import pymc_dp as dp

PATIENTS = (300, 900, 1500, 2300)  # of each hospital


def model_of(columns):
    """Recovery, given age in decades from 50, and treatment."""
    with pm.Model() as model:
        age, treated, recovered = (pm.Data(n, column) for n, column in columns.items())
        baseline = pm.Normal("baseline", 0, 1)
        effect = pm.Normal("effect", 0, 1)
        slope = pm.Normal("slope", 0, 1)
        logit_p = baseline + effect * treated + slope * age
        pm.Bernoulli("outcome", logit_p=logit_p, observed=recovered)
    return model


def without_records():
    """The model of one row of zeros, in whose place those of records are read."""
    return model_of({"age": [0.0], "treated": [0.0], "recovered": [0.0]})


def patients(seed, n):
    """Made-up records: those of a hospital here, and the coordinator's stand-in."""
    rng = np.random.default_rng(seed)
    age, treated = rng.uniform(-3, 3, n), rng.integers(0, 2, n)
    recovered = rng.random(n) < 1 / (1 + np.exp(0.5 - 1.0 * treated + 0.4 * age))
    return {"age": age, "treated": treated, "recovered": recovered.astype(np.int8)}


def hospital(number, others, coordinator):
    """Answer the coordinator until it closes the connection."""
    records = dp.Records(patients(number, PATIENTS[number]))
    site = dp.sites.Site(without_records(), records, others, number=number)
    site.serve(coordinator)


def connected():
    """Start the hospitals; connections to them, and their processes."""
    context = multiprocessing.get_context("spawn")
    numbers = range(len(PATIENTS))
    others = [{} for _ in numbers]
    for i, j in itertools.combinations(numbers, 2):
        others[i][j], others[j][i] = context.Pipe()
    connections, processes = [], []
    for number in numbers:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=hospital, args=(number, others[number], theirs)
        )
        process.start()
        connections.append(ours)
        processes.append(process)
    return connections, processes


def main():
    """Sample at epsilon = 1, and print the posterior."""
    connections, processes = connected()
    sites = dp.sites.Sites(connections)
    print(sites)
    stand_in = model_of(patients(9, 20_000))
    idata = dp.sample(
        epsilon=1.0, delta=1e-6, model=without_records(), data=sites, covariates=stand_in, chains=2,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    sites.close()
    for process in processes:
        process.join()
    for name in ("baseline", "effect", "slope"):
        draws = idata["posterior"][name]
        print(f"{name}: {float(draws.mean()):.2f} (sd {float(draws.std()):.2f})")


if __name__ == "__main__":
    main()
