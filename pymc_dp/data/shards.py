"""Records in shards on the workers of a Dask cluster (the extra ``dask``)."""

from __future__ import annotations

import hashlib

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from pymc_dp.data.columns import in_words
from pymc_dp.data.records import Records
from pymc_dp.data.source import Kinds


class Shards:
    """Private records in shards that stay on the workers of a Dask cluster.

    Each shard is a :class:`~pymc_dp.Records` on one worker. A reduction is one task for each shard, whose results are
    whole numbers; so neither the number of shards nor their order changes a sum, and a shard that is lost with its
    worker is loaded and summed again elsewhere, with the same result. Noise and ledger are with the caller alone.

    Parameters
    ----------
    shards : dask DataFrame, mapping of str to dask Array, sequence of Delayed, or sequence of Records
        Parts of the records, in their order: partitions of a data frame, chunks of rows of arrays (those of the first
        array), delayed tables (as :class:`~pymc_dp.Records` takes them), or records such as
        ``Records.from_parquet(...).split(64)``, which workers read themselves. Empty parts are left out.
    arguments : mapping of str to str or list of str, optional
        For tables: names of a function's arguments to the columns that they stand for; a list of columns is a
        matrix. By default each column is an argument of its own name.
    load : bool
        Whether workers read the records into memory, once. By default they do for tables; those that are given as
        :class:`~pymc_dp.Records` stay where they are, and are read in each pass.
    client : distributed.Client, optional
        By default the current one, else one of a new ``LocalCluster``.

    Attributes
    ----------
    n_records : int
        Number of rows of all shards.
    layout : dict
        Names of arguments to ``(dtype, trailing shape)``.
    block_rows : int
        Largest number of rows of a block of any shard.
    client : distributed.Client
        Of the cluster that has the shards.

    Raises
    ------
    ImportError
        If Dask is missing.
    TypeError
        If `shards` is none of these.
    ValueError
        As of :class:`~pymc_dp.Records`, and if the shards have different columns.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> from distributed import Client
    >>> records = dp.Records({"x": np.arange(1000.0), "y": np.arange(1000) % 2})
    >>> with Client(n_workers=2) as client:  # doctest: +SKIP
    ...     print(dp.Shards(records.split(4), client=client))
    Shards(1000 records in 4 shards; x: float64, y: int64)
    """

    def __init__(
        self,
        shards: Any,
        *,
        arguments: Mapping[str, str | Sequence[str]] | None = None,
        load: bool = False,
        client: Any = None,
    ) -> None:
        self.client = _client(client)
        make = partial(_as_records, arguments=arguments, load=load)
        self._shards = self.client.map(make, _parts(shards, self.client), pure=False)
        described = self.map(_described)
        self._shards = [
            shard for shard, found in zip(self._shards, described, strict=True) if found
        ]
        if not self._shards:
            raise ValueError("There are no records: give one at least.")
        layouts, lengths, block_rows = zip(*filter(None, described), strict=True)
        self.layout: Kinds = layouts[0]
        if differ := [k for k, layout in enumerate(layouts) if layout != self.layout]:
            raise ValueError(
                f"Shards 0 and {differ[0]} have different columns: {self.layout} and {layouts[differ[0]]}. Write them with one schema."
            )
        self._starts = np.array([0, *accumulate(lengths)])
        self.n_records, self.block_rows = int(self._starts[-1]), max(block_rows)

    def __repr__(self) -> str:
        return f"Shards({self.n_records} records in {len(self._shards)} shards; {in_words(self.layout)})"

    def map(self, function: Callable[..., Any], *arguments: Any, index: Any = None) -> list[Any]:
        """Results of a function of each shard, in their order, or of those that have records with these numbers.

        It is called with a :class:`~pymc_dp.Records`, the numbers of rows in it (None for all), and the arguments, of which
        futures are replaced by their values.
        """
        self.check_connected()
        asked: list[tuple[Any, np.ndarray | None]] = [(shard, None) for shard in self._shards]
        if index is not None:
            asked = [(self._shards[k], rows) for k, _, rows in self._by_shard(index)]
        futures = [
            self.client.submit(function, shard, rows, *arguments, pure=False)
            for shard, rows in asked
        ]
        return self.client.gather(futures)

    def hold(self, what: Any) -> Any:
        """Send an object to the workers, each of which keeps it; what to pass to :meth:`map`.

        A task, and no value: a worker that takes the place of another one gets it again.
        """
        return self.client.submit(_itself, what, pure=False)

    def places(self, index: np.ndarray) -> np.ndarray:
        """Where the records of an index are among those that :meth:`map` gives, shard after shard."""
        return np.argsort(np.concatenate([places for _, places, _ in self._by_shard(index)]))

    def _by_shard(self, index: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """For each shard that has some of the records: its number, their places in the index, their numbers in it."""
        owners = np.searchsorted(self._starts, index, side="right") - 1
        found = []
        for k in np.unique(owners):
            places = np.flatnonzero(owners == k)
            found.append((int(k), places, index[places] - self._starts[k]))
        return found

    def take(self, index: npt.ArrayLike) -> dict[str, np.ndarray]:
        """Records by number, as of :class:`~pymc_dp.Records`."""
        index = np.asarray(index, dtype=np.int64)
        parts = self.map(lambda records, rows: records.take(rows), index=index)
        places = self.places(index)
        return {
            name: np.concatenate([part[name] for part in parts])[places] for name in self.layout
        }

    def check_connected(self) -> None:
        """Raise RuntimeError if these shards were copied or pickled: then there is no client."""
        if self.client is None:
            raise RuntimeError(
                "These shards are a copy, without a connection to their cluster: use the original."
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"client": None, "_shards": []}  # in another process: no records

    def digests(self, new: Callable[[str], Any]) -> dict[str, bytes]:
        """A digest of each argument, from those of the shards in their order: it depends on the division into shards."""
        found = self.map(lambda records, _: records.digests(new))
        return {
            name: hashlib.blake2b(b"".join(part[name] for part in found)).digest()
            for name in self.layout
        }


def _client(client: Any) -> Any:
    try:
        from distributed import Client, get_client
    except ImportError:
        raise ImportError(
            "Shards need Dask: install dask and distributed, or pymc-dp with its extra 'dask'."
        ) from None
    if client is not None:
        return client
    try:
        return get_client()
    except ValueError:
        return Client(threads_per_worker=1, dashboard_address=":0")


def _parts(shards: Any, client: Any) -> list[Any]:
    """Futures or objects, one for each shard."""
    if isinstance(shards, Mapping):
        shards = _chunks(shards)
    elif hasattr(shards, "to_delayed") and hasattr(shards, "columns"):
        shards = shards.to_delayed()
    if isinstance(shards, Records):
        shards = [shards]
    shards = list(shards)
    if not shards:
        raise ValueError("There are no shards: give one at least.")
    if all(isinstance(shard, Records) for shard in shards):
        return shards
    if all(hasattr(shard, "__dask_graph__") for shard in shards):
        return client.compute(shards)
    raise TypeError(
        f"shards must be a Dask DataFrame, a mapping of names to Dask arrays, or a sequence of delayed tables or of Records, got a list of {type(shards[0]).__name__}."
    )


def _chunks(arrays: Mapping[str, Any]) -> list[Any]:
    """Delayed tables of chunks of rows."""
    from dask.delayed import delayed

    if others := [name for name, array in arrays.items() if not hasattr(array, "rechunk")]:
        raise TypeError(
            f"{others[0]!r} is no Dask array, but a {type(arrays[others[0]]).__name__}: give all columns as Dask arrays, or a list of Records."
        )
    if len(lengths := {array.shape[0] for array in arrays.values()}) > 1:
        raise ValueError(f"The arrays must have the same number of rows, got {sorted(lengths)}.")
    rows = next(iter(arrays.values())).chunks[0]
    columns = {
        name: array.rechunk((rows, *array.shape[1:])).to_delayed().reshape(-1)
        for name, array in arrays.items()
    }
    tables = [
        dict(zip(columns, chunk, strict=True)) for chunk in zip(*columns.values(), strict=True)
    ]
    return [delayed(table) for table in tables]


def _as_records(part: Any, arguments: Any, load: bool) -> Records | None:
    if isinstance(part, Records):
        return part.load() if load else part
    if hasattr(part, "columns") and not len(part):
        return None
    return Records(part, arguments=arguments).load()


def _itself(what: Any) -> Any:
    return what


def _described(records: Records | None, _: None) -> tuple[dict, int, int] | None:
    return None if records is None else (records.layout, records.n_records, records.block_rows)
