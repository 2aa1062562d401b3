"""Bits of decisions and noise in tests: those of the operating system are replaced by seeded ones, in one process.

A test that passed passes again. ``PYMC_DP_BITS_SEED=1`` gives other bits, ``-1`` the secret ones that users get.
Processes that a test starts keep their secret bits.
"""

import contextlib
import os
import zlib

import numpy as np

from pymc_dp.privacy.randomness.bits import OperatingSystemBits

SEED = int(os.environ.get("PYMC_DP_BITS_SEED", "0"))
#: Files and folders of tests whose subject is the secret source itself, or its speed.
SECRET = {
    "test_bits.py",
    "test_batches.py",
    "test_secret_randomness.py",
    "test_secret_words.py",
    "benchmarks",
}


def is_secret(nodeid):
    return SEED < 0 or not SECRET.isdisjoint(nodeid.split("::")[0].split("/"))


@contextlib.contextmanager
def seeded_for(name):
    """In this process all secret bits come from a generator whose seed is that of the name."""
    pid, real = os.getpid(), (OperatingSystemBits.word, OperatingSystemBits.words)
    generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])

    def word(self):
        return int(words(self, 1)[0])

    def words(self, n):
        if os.getpid() != pid:
            return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
        return generator.integers(0, 2**64, size=n, dtype=np.uint64)

    OperatingSystemBits.word, OperatingSystemBits.words = word, words
    try:
        yield
    finally:
        OperatingSystemBits.word, OperatingSystemBits.words = real
