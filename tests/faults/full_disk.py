"""A program on a file system that is full, run by ``test_ledger_files``: claims until there is no room, and one when there is again."""

import subprocess
import sys

from pathlib import Path

from pymc_dp.errors import LedgerError
from pymc_dp.privacy.budget.claims import BudgetTerms
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.mechanism import Gaussian


def claim(ledger):
    ledger.claim(BudgetTerms("b", 50.0, 1e-6), "s", [(Gaussian(500.0), 1.0)])


def main(folder):
    """Print the error, how many claims were made, how many are kept, and how many after the next one."""
    ledger, made = Ledger(Path(folder) / "a.ledger", epsilon=50.0, delta=1e-6), 0
    try:
        while made < 5000:
            claim(ledger)
            made += 1
    except LedgerError as error:
        print(error)
    print(made)
    print(len(ledger.claims()))
    subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
    claim(ledger)
    print(len(Ledger(ledger.path).claims()))


if __name__ == "__main__":
    main(sys.argv[1])
