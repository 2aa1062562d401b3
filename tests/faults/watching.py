"""Programs in processes of their own, and what they read of the data, noted where a kill cannot undo it."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import time

from collections import defaultdict
from pathlib import Path

import pytest

from pymc_dp.acceptance import Penalty
from pymc_dp.privacy.accounting.filters import RenyiShare
from pymc_dp.privacy.budget.ledger import Ledger
from pymc_dp.privacy.mechanisms.mechanism import Decision
from pymc_dp.steps import base

FORK = multiprocessing.get_context("fork")
#: Seconds that a slow machine may take to start a process and compile in it.
PATIENCE = 600.0
#: Ways to read the data.
READS = "logp", "logp_at", "clipped_grad", "gradients", "total"


class Watched:
    """A likelihood that notes each access in a file, before it happens: who, what, and the bound of a sum.

    The first process with ``hold`` notes goes no further: it waits to be killed, see `held`.
    """

    def __init__(self, likelihood, path, hold=None):
        self._likelihood, self._path, self._hold, self._notes = likelihood, path, hold, 0

    def _note(self, what, bound=math.nan):
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{os.getpid()} {what} {float(bound)!r}\n".encode())
        os.close(file)
        self._notes += 1
        if self._notes == self._hold:
            with contextlib.suppress(FileExistsError):
                os.symlink(str(os.getpid()), f"{self._path}.held")
                time.sleep(PATIENCE)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._likelihood, name)
        if name not in READS:
            return found

        def read(*args, **kwargs):
            self._note(name)
            return found(*args, **kwargs)

        return read

    def clipped_change(self, new, old, bound):
        for theta in (old, new):
            self._likelihood._latest.at(theta, self.logp)  # noted if it is not of the last states
        self._note("sum", bound)
        return self._likelihood.clipped_change(new, old, bound)


@contextlib.contextmanager
def watched(path, hold=None):
    """Steps built here note their accesses, except those that are made while they are built."""
    real = base.RecordLikelihood
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            base, "RecordLikelihood", lambda *args, **kw: Watched(real(*args, **kw), path, hold)
        )
        yield


def held(path):
    """The process that waits to be killed, or 0."""
    try:
        return int(os.readlink(f"{path}.held"))
    except FileNotFoundError:
        return 0


def accesses(path, what=READS):
    """What each process read: bounds of sums, or not-a-number for everything else.

    A line without its end is being written.
    """
    found = defaultdict(list)
    if Path(path).exists():
        for line in Path(path).read_text().rpartition("\n")[0].splitlines():
            pid, kind, bound = line.split()
            if kind in what:
                found[int(pid)].append(float(bound))
    return found


def _level(sensitivity):
    return math.floor(20 * math.log(sensitivity))


@functools.cache
def _least_cost(level, order):
    """Of decisions of a level of sensitivities, 5 % wide: exact costs of thousands of them would take minutes."""
    return float(Decision(Penalty(2.0), math.exp(level / 20)).renyi([order])[0])


def check_penalty_chains(ledger, path):
    """What each process read costs no more than what it had claimed: decisions of DPPenalty on all records."""
    sums, reads = accesses(path, ("sum",)), accesses(path)
    assert set(sums) <= set(reads)
    for pid, all_reads in reads.items():
        shares = [
            access
            for claim in Ledger(ledger).claims()
            if claim.process.endswith(f":{pid}")
            for access, _ in claim.accesses
        ]
        assert shares and all(isinstance(s, RenyiShare) for s in shares), "read before it claimed"
        (order,) = {s.order for s in shares}
        spent = sum(_least_cost(_level(2 * bound), order) for bound in sums[pid])
        assert spent <= sum(s.rho for s in shares) * (1 + 1e-9)
        # Two states before the first decision, one for each after it, and one that was cut short.
        assert len(all_reads) <= len(sums[pid]) + len(shares) + 1


class Program:
    """A function that runs in a process of its own; it and its children make up a group that can be killed."""

    def __init__(self, function, *args):
        self._pipe, there = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=self._run, args=(there, function, args))
        self._process.start()
        self.pid = self._process.pid
        there.close()

    @staticmethod
    def _run(pipe, function, args):
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            result = "returned", function(*args)
        except BaseException as error:
            result = type(error).__name__, str(error)
        pipe.send(result)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()

    def wait_until(self, condition, timeout=PATIENCE):
        """Whether the condition came true before the program ended."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if condition():
                return True
            if not self._process.is_alive():
                return condition()
            time.sleep(5e-4)
        raise TimeoutError

    def kill(self):
        """Kill this process alone; its workers live on."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def outcome(self, timeout=PATIENCE):
        """What the function returned or raised: a name, and a value or a message."""
        if not self._pipe.poll(timeout):
            raise TimeoutError
        return self._pipe.recv()
