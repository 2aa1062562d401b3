"""Messages between a coordinator and sites: a word and arrays of numbers, and nothing that could run code."""

from __future__ import annotations

import io

from typing import Any, Protocol

import numpy as np

#: A word, and arrays or None.
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
