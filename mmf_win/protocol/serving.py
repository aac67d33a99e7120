"""Protocol by which a model process answers its parent, over a connection of its own.

::

    parent ── [{"id": 1, "img": "/photos/cat.png", "text": "look at this"}, …] ──▶ child
    parent ◀── {"probas": [0.8123, …], "error": null, "ms": 31.4} ──────────────── child

Both messages are JSON, which cannot run code as a pickle could. If a row fails, ``error`` has class, message
and hint of its :class:`~mmf_win.errors.MmfwError`, and ``probas`` has the rows before it.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from itertools import takewhile
from math import isfinite
from multiprocessing.connection import Listener
from typing import Any

from mmf_win.errors import DataError, MmfwError
from mmf_win.files import json_bytes
from mmf_win.protocol.attempt import AttemptRequest

#: Predicts the probability of each row.
PredictFunction = Callable[[list[dict[str, Any]]], list[float]]


def serve_predictions(attempt_request: AttemptRequest, predict: PredictFunction) -> None:
    """Write the address to the events, and answer the parent until it disconnects.

    An error of ``predict`` other than MmfwError ends this process, since its state is then unknown.
    """
    with Listener(None if sys.platform == "win32" else str(attempt_request.folder.path / "socket")) as listener:
        attempt_request.write_event("serving", address=listener.address)
        connection = listener.accept()
    with connection:
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            connection.send_bytes(json_bytes(_build_reply(json.loads(request), predict)))


def _build_reply(rows: list[dict[str, Any]], predict: PredictFunction) -> dict[str, Any]:
    start, error = time.perf_counter(), None
    probas: list[float] = []
    try:
        try:
            probas += predict(rows)
        except Exception:
            if len(rows) == 1:
                raise
            traceback.print_exc()  # for the log
        # One by one, up to the row that fails. Outside the handler, since the error keeps memory of the
        # batch.
        for row in [] if probas else rows:
            probas += predict([row])
        finite = list(takewhile(isfinite, probas))
        if len(finite) < len(probas):
            probas = finite
            raise DataError("a predicted probability is not a number", hint="check if the weights are damaged")
    except MmfwError as failed:
        error = [type(failed).__name__, str(failed), failed.hint]
    return {"probas": probas, "error": error, "ms": round(1000 * (time.perf_counter() - start), 3)}
