"""Records at several sites, none of which shows a row or a sum of its own."""

from __future__ import annotations

import hashlib
import io
import json

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pymc_dp.data.columns import in_words
from pymc_dp.data.source import Kinds
from pymc_dp.errors import ModelError

#: Steps of a count to which sites add noise: their rounding must be fine, as the noise on counts may be small.
COUNT_STEPS = 2**20
#: Between a coordinator and a site: a word, and arrays of numbers or None; nothing that could run code.
Message = tuple[str, list[Any]]


class Connection(Protocol):
    """Channel for messages, such as a ``multiprocessing.connection.Connection``."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for a message; EOFError after the last one."""

    def poll(self, timeout: float, /) -> bool:
        """Whether a message, or the end, arrives within `timeout` seconds."""


def send(connection: Connection, word: str, *values: Any) -> None:
    """Send a word and values: arrays of numbers, numbers, strings or None."""
    given = {f"{k}": np.asarray(v) for k, v in enumerate(values) if v is not None}
    content = io.BytesIO()
    np.savez(content, word=np.array(word), n=np.array(len(values)), **given)  # type: ignore[arg-type]
    connection.send_bytes(content.getvalue())


def receive(connection: Connection, timeout: float) -> Message:
    """Receive a message; TimeoutError after `timeout` seconds, EOFError if the other side has closed the connection."""
    if not connection.poll(timeout):
        raise TimeoutError(
            f"No answer within {timeout:g} s: look whether the other side still runs."
        )
    with np.load(io.BytesIO(connection.recv_bytes()), allow_pickle=False) as found:
        values = [found[f"{k}"] if f"{k}" in found else None for k in range(int(found["n"]))]
        word = str(found["word"])
    return word, [v.item() if v is not None and v.ndim == 0 else v for v in values]


class Sites:
    """Private records of several sites, for a coordinator who gets sums over all of them only.

    Each site (:class:`~pymc_dp.sites.Site`) evaluates its own records and divides its sum, a vector of whole numbers,
    into one share for each site, at random: the shares add up to the sum modulo ``2**64``, and any of them but one
    are independent uniform numbers. Each site adds up the shares that it gets, one from each site, and tells the
    coordinator the result. What the coordinator gets is uniform but for its total, which is the exact sum over all
    records.

    Parameters
    ----------
    connections : sequence of connections
        One to each site, in any order: ``multiprocessing.connection.Connection``, or another object with
        ``send_bytes``, ``recv_bytes`` and ``poll``.
    timeout : float
        Seconds to wait for a site. 600 by default.

    Attributes
    ----------
    n_records : int
        Of all sites together. The numbers of single sites are not known here.
    adds_noise : bool
        Whether the sites add the noise of releases (``Site(adds_noise=True)``).
    layout : dict
        Names of arguments to ``(dtype, trailing shape)``, the same at all sites.
    block_rows : int
        Largest number of rows that a site reads at once.

    Raises
    ------
    ValueError
        If there are fewer than two sites, or their columns differ.
    TimeoutError, EOFError
        If a site does not answer, or has ended.
    RuntimeError
        If an earlier question was interrupted, or this is a copy.

    Notes
    -----
    Who learns what, with and without noise of the sites, is in :doc:`/many_machines`. The coordinator keeps the budget.

    Not available: batches (:class:`~pymc_dp.DPFastMH`, :class:`~pymc_dp.DPSGHMC`), which ask single sites, public
    covariates (pass a stand-in model) and runs without clipping.

    Examples
    --------
    At the coordinator, with connections to two sites:

    >>> sites = dp.sites.Sites([to_north, to_south])  # doctest: +SKIP
    >>> dp.sample(model=model, data=sites, epsilon=1.0, delta=1e-6)  # doctest: +SKIP
    """

    def __init__(self, connections: Sequence[Connection], *, timeout: float = 600.0) -> None:
        self._connections, self._timeout = list(connections), timeout
        self._is_waiting = False
        if len(self._connections) < 2:
            raise ValueError(
                f"Sums of {len(self._connections)} site would be seen as they are: give connections to two sites or more."
            )
        described = [json.loads(text) for (text,) in self._ask("describe")]
        if differ := [k for k, found in enumerate(described) if found != described[0]]:
            raise ValueError(
                f"Sites 0 and {differ[0]} differ: {described[0]} and {described[differ[0]]}. Give all the same columns and options."
            )
        self.layout: Kinds = {n: (np.dtype(d), tuple(s)) for n, d, s in described[0]["columns"]}
        self.block_rows: int = described[0]["block_rows"]
        self.adds_noise: bool = described[0]["adds_noise"]
        self._least_noise: float = described[0].get("least_noise", 0.0)
        self._scale: float | None = None
        self.n_records = int(self.total("n_records")[0])

    def __repr__(self) -> str:
        return f"Sites({self.n_records} records at {len(self._connections)} sites; {in_words(self.layout)})"

    @property
    def assumed(self) -> str:
        """What the guarantee assumes, for a report."""
        if self.adds_noise:
            n = len(self._connections)
            return f"Each of {n} sites adds its part of the noise, and tells nobody: if m sites tell theirs, a part of ({n} - m) / {n} of the variance is left."
        return "The coordinator of the sites, who knows sums over all of them without noise, does not tell them."

    def total(self, word: str, *arguments: Any) -> Any:
        """Sum of a term over all sites, int64 of shape ``(k,)``: of its class, by name (:mod:`pymc_dp.model.terms`), and its fields.

        ModelError if the model raises at a site; its message has the type of the error only.
        """
        answers = self._ask(word, self._scale, *arguments)
        if failed := [kind for _, kind in answers if kind]:
            raise ModelError(
                f"The model raised {failed[0]} at a site; its message is withheld, because it may show private values.", failed[0]
            )  # fmt: skip
        total = np.sum([share for share, _ in answers], axis=0, dtype=np.uint64).view(np.int64)
        if self._scale is not None and word == "ScoreNorms":
            return np.rint(total / COUNT_STEPS).astype(np.int64)
        return total

    def check_noise(self, noise_sd: float) -> None:
        """Raise ValueError if the sites would refuse noise of this standard deviation, relative to the change by replacing a record."""
        if noise_sd < self._least_noise:
            raise ValueError(
                f"These sites answer with noise of at least {self._least_noise:g} times the change by a record, and a release would have "
                f"{noise_sd:.3g}: lower epsilon, or agree on another least_noise= at all sites. Nothing was accessed."
            )

    @contextmanager
    def adding(self, law: Any) -> Iterator[None]:
        """Within this context the sites add noise to sums: Gaussian noise of ``law.scale``, each its part."""
        if law.kind != "gaussian":
            raise ValueError("Sites can add Gaussian noise only: pass noise='gaussian'.")
        self._scale = law.scale
        try:
            yield
        finally:
            self._scale = None

    def take(self, index: Any) -> Any:
        """Refused: sites do not show rows."""
        raise ValueError(
            "Sites do not show rows: pass a stand-in model as covariates=, and use samplers that read all records."
        )

    def digests(self, new: Callable[[str], Any]) -> dict[str, bytes]:
        """A digest of each argument from those of the sites, which have keys of their own."""
        found = [json.loads(text) for (text,) in self._ask("digests")]
        return {
            name: hashlib.blake2b("".join(part[name] for part in found).encode()).digest()
            for name in self.layout
        }

    def close(self) -> None:
        """End the sites' service."""
        for connection in self._connections:
            send(connection, "close")

    def _ask(self, word: str, *arguments: Any) -> list[list[Any]]:
        self.check_connected()
        self._is_waiting = True
        for connection in self._connections:
            send(connection, word, *arguments)
        answers = [receive(connection, self._timeout) for connection in self._connections]
        self._is_waiting = False
        if refused := [values[0] for found, values in answers if found == "refused"]:
            raise ValueError(refused[0])
        return [values for _, values in answers]

    def check_connected(self) -> None:
        """Raise RuntimeError if answers to an earlier question may still come, or this is a copy without connections."""
        if not self._connections:
            raise RuntimeError("These sites are a copy, without connections: use the original.")
        if self._is_waiting:
            raise RuntimeError(
                "An earlier question was interrupted, and its answers may still come: connect to the sites anew."
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connections": []}  # in another process: no records
