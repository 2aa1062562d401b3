"""Reading ahead: a thread reads the next blocks while the caller works on one."""

from __future__ import annotations

import queue
import threading

from collections.abc import Generator
from typing import Any


def read_ahead(blocks: Generator[Any], depth: int = 2) -> Generator[Any]:
    """Items of a generator that runs in a thread of its own, from the first item on.

    The thread ends with the last item, on an error and when the iterator is closed: a process with threads cannot be
    forked safely.
    """
    ready: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    room = threading.Semaphore(depth)
    stopped = threading.Event()

    def read() -> None:
        try:
            while True:
                room.acquire()  # before an item is made: at most `depth` wait
                if stopped.is_set():
                    return
                ready.put((True, next(blocks)))
        except BaseException as error:
            ready.put((False, error))
        finally:
            blocks.close()

    # A daemon: otherwise a program that ends within a loop would wait for it for ever.
    thread = threading.Thread(target=read, name="pymc_dp records", daemon=True)
    thread.start()
    try:
        while True:
            is_item, found = ready.get()
            if not is_item:
                if isinstance(found, StopIteration):
                    return
                raise found
            room.release()
            yield found
    finally:
        stopped.set()
        room.release()
        thread.join()
