"""Records at several sites, which tell a coordinator sums over all of them, and nothing else.

:class:`Site` runs where records are, :class:`Sites` at the coordinator.
"""

from __future__ import annotations

import json
import math
import os

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc_dp.arguments import as_positive_float
from pymc_dp.data import Records
from pymc_dp.data.several_sites import COUNT_STEPS, Connection, Sites, receive, send
from pymc_dp.model.block_model import BlockModel
from pymc_dp.model.blocked_likelihood import of_shard
from pymc_dp.model.data_keys import KeyedDigest
from pymc_dp.model.terms import ClippedChange, ClippedScores, ScoreNorms, ScoreProducts, Term
from pymc_dp.privacy.randomness.bits import OperatingSystemBits
from pymc_dp.privacy.randomness.rounded_gaussian import rounded_gaussian

__all__ = ["Site", "Sites"]

#: What a coordinator may ask for, by name: the site makes the term of the numbers that are sent, and runs no code.
_TERMS: dict[str, type[Term]] = {
    kind.__name__: kind for kind in (ClippedChange, ClippedScores, ScoreNorms, ScoreProducts)
}


class Site:
    """Private records of one site, which takes part in sums over several (:class:`~pymc_dp.sites.Sites`).

    The site builds the model of its records itself: it runs no code that is sent to it. It answers with shares of sums
    of clipped terms, in whole numbers, and shows no row.

    Parameters
    ----------
    model : pm.Model
        The same at all sites and at the coordinator. Columns are ``pm.Data`` with their names, as in
        :class:`~pymc_dp.model.BlockedLikelihood`.
    records : Records
        Those of this site.
    peers : mapping of int to connection
        Connections to all other sites, by their numbers.
    number : int
        Of this site: different for all, and none of `peers`.
    public : sequence of str or array
        Arrays of the model that hold no data of records. The same at all sites.
    compile_kwargs : dict, optional
        Arguments for ``pytensor.function``; Numba by default. The same at all sites.
    adds_noise : bool
        Whether sites add the Gaussian noise of releases, each the same part of its variance, and refuse to tell sums
        without it. The same at all sites. False by default: then the coordinator adds it.
    least_noise : float
        With `adds_noise`: least standard deviation of the noise on an answer of all sites, relative to how far replacing
        a record can move it; with less, the answer is refused. The same at all sites. 1 by default: then each answer
        alone is (4.9, 1e-6)-differentially private, whatever the coordinator asks for. (All answers together: the
        coordinator keeps the budget.)
    timeout : float
        Seconds to wait for another site. 600 by default.

    Raises
    ------
    ValueError
        If there are no peers, `number` is one of theirs, or `least_noise` is not positive.

    Notes
    -----
    Noise of a site is a Gaussian of ``sigma / sqrt(k)``, rounded to the grid, with `k` sites. The sum of `k` rounded
    Gaussians has the law of a rounded sum ``G + U``, of a Gaussian `G` of ``sigma`` and a sum `U` of ``k - 1`` numbers
    that are uniform between -1/2 and 1/2, up to a total variation of the order of ``exp(-(pi s)**2)``, where `s` is the
    standard deviation at one site in steps of the grid (by Poisson's formula: the characteristic function of a rounded
    Gaussian repeats with period ``2 pi``, and only products of different repetitions differ). So what is released is
    that of the Gaussian mechanism, with `U` added and rounded afterwards.

    Examples
    --------
    At a site; ``listener.accept()`` of ``multiprocessing.connection`` gives connections to other machines.

    >>> site = dp.sites.Site(
    ...     model, records, {1: to_site_1, 2: to_site_2}, number=0
    ... )  # doctest: +SKIP
    >>> site.serve(to_coordinator)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: pm.Model,
        records: Records,
        peers: Mapping[int, Connection],
        *,
        number: int,
        public: Sequence[Any] = (),
        compile_kwargs: dict[str, Any] | None = None,
        adds_noise: bool = False,
        least_noise: float = 1.0,
        timeout: float = 600.0,
    ) -> None:
        if not peers or number in peers:
            raise ValueError(
                f"Site {number} must have peers with other numbers than its own, got {sorted(peers)}."
            )
        self._block = BlockModel(model, records.layout, public, compile_kwargs)
        self._records, self._timeout, self._adds_noise = records, timeout, adds_noise
        # Each pair of sites in the same order: none waits for one that waits for it.
        self._peers = sorted(peers.items())
        self._number = number
        self._least_noise = as_positive_float("least_noise", least_noise)
        self._new_digest = KeyedDigest(os.urandom(32))

    def __repr__(self) -> str:
        peers = [number for number, _ in self._peers]
        return f"Site(number={self._number}, peers={peers}, {self._records!r})"

    def serve(self, coordinator: Connection) -> None:
        """Answer until the coordinator ends it or closes the connection.

        Parameters
        ----------
        coordinator : connection
            To the process that has the :class:`Sites`.

        Raises
        ------
        TimeoutError, EOFError
            If another site does not answer, or has ended.
        """
        while True:
            try:
                while not coordinator.poll(60.0):
                    pass
                word, arguments = receive(coordinator, self._timeout)
            except EOFError:
                return
            if word == "close":
                return
            send(coordinator, *self._answer(word, arguments))

    def _answer(self, word: str, arguments: list[Any]) -> tuple[Any, ...]:
        records = self._records
        if word == "describe":
            columns = [(name, d.str, s) for name, (d, s) in records.layout.items()]
            described = {"columns": columns, "block_rows": records.block_rows}
            if self._adds_noise:
                described["least_noise"] = self._least_noise
            return word, json.dumps(described | {"adds_noise": self._adds_noise})
        if word == "digests":
            # Hashed with their names: else those of columns that are equal would be equal.
            found = {n: d.hex() for n, d in records.digests(self._new_digest).items()}
            return word, json.dumps({n: self._new_digest(n + d).hexdigest() for n, d in found.items()})  # fmt: skip
        if word == "n_records":
            return word, *self._shared(lambda: records.n_records)
        if word not in _TERMS:
            return "refused", f"A site answers {', '.join(_TERMS)}, and not {word}."
        scale, *arguments = arguments
        try:
            term = _TERMS[word](*arguments)
            self._block.check_term(term)
        except (TypeError, ValueError, AttributeError):
            return "refused", f"A site cannot make a {word} for its model of what was sent."
        if getattr(term, "bound", 0.0) == math.inf:
            return "refused", "A site answers sums of clipped terms, with a finite bound."
        if self._adds_noise and scale is None:
            why = "A site that adds noise tells no sum without it: use dp.sample(epsilon=, delta=)."
            return "refused", why
        if self._adds_noise and not self._is_enough(term, scale):
            return "refused", (
                f"A site answers with noise of at least {self._least_noise:g} times the change by a record, and not with less: lower epsilon, or "
                "agree on another least_noise= at all sites."
            )

        def compute() -> np.ndarray:
            steps = of_shard(records, None, self._block, True, term)
            return steps if scale is None else self._with_noise(steps, scale, term)

        return word, *self._shared(compute)

    def _is_enough(self, term: Term, scale: Any) -> bool:
        """Whether noise of all sites on a release is at least the least, and finite; False for a scale that is no number."""
        if isinstance(term, ClippedChange):
            return False
        try:
            return bool(0 < self._least_noise * term.sensitivity("substitute") <= scale < math.inf)
        except (TypeError, ValueError):
            return False

    def _with_noise(self, steps: np.ndarray, scale: float, term: Term) -> np.ndarray:
        """Add the part of the noise of one site."""
        if not self._adds_noise:
            raise ValueError("This site does not add noise.")
        exponent = term.exponent
        if isinstance(term, ScoreNorms):
            steps, exponent = steps * COUNT_STEPS, 1 - COUNT_STEPS.bit_length()
        part = math.ldexp(scale, -exponent) / math.sqrt(len(self._peers) + 1)
        return steps + rounded_gaussian(part, steps.size, OperatingSystemBits())

    def _shared(self, compute: Callable[[], Any]) -> tuple[np.ndarray | None, str | None]:
        """The sum of one share of each site's numbers; or the kind of an error, here or at another site."""
        kind = None
        try:
            own = np.array(compute(), dtype=np.int64).reshape(-1).view(np.uint64)
        except Exception as error:  # its text may show values
            own, kind = np.empty(0, dtype=np.uint64), getattr(error, "kind", type(error).__name__)
        received = np.zeros_like(own)
        for number, peer in self._peers:
            share = np.frombuffer(os.urandom(own.nbytes), np.uint64)
            if self._number < number:
                send(peer, "share", share)
                _, (other,) = receive(peer, self._timeout)
            else:
                _, (other,) = receive(peer, self._timeout)
                send(peer, "share", share)
            if len(other) == len(own):
                own, received = own - share, received + other
            else:
                kind = kind or "an error"
        return (None, kind) if kind else (own + received, None)
