"""The plain files through which the parent and the worker speak.

::

    parent ── request.json ──▶ worker       what to do
    parent ◀── events.jsonl ── worker       what happens; append-only, one JSON object a line
    parent ── stop ──────────▶ worker       an empty file: please save and leave
    parent ◀── exit.json ───── worker       how it ended; written last

Files need no signals and no sockets, so both systems behave alike, a killed parent loses nothing, and
``events.jsonl`` is the run's history. Readers skip kinds and fields that they do not know.

An event has ``t`` in seconds since the epoch, ``kind``, ``attempt``, and what belongs to its kind::

    run_started      pid, and the versions that a result depends on
    loaded           source (a file of weights, or the name of a model), copied, total (tensors of the model),
                     missing (names of those that the source did not set, the first of them)
    train_started    update (where it begins), max_updates, device, precision, batch, micro_batch, searching
                     (whether that is only to measure with), workers (of the DataLoader), processes (that
                     train together), seed, parameters (how many), known_fit (whether the micro-batch fitted
                     before), fit (what that depends on), data (as in Attempt; null where it is not known)
    micro_batch      rows (of a micro-batch from here on), found (whether this is what was looked for)
    train            update, max_updates, epoch, loss, lr, updates_per_s, max_mem_mib
    val              update, metrics (auroc, accuracy, loss and more; a run that an earlier version began has
                     MMF's names, as hateful_memes/roc_auc, which EventReader translates), final (whether of
                     the best checkpoint, after training), data (as above)
    saving           update; a checkpoint is about to be written
    checkpoint       update; it is written, with this sha256; best (whether also as the best one so far)
    note             text; something that the user should know
    alive            progress that has no event of its own
    predict_started  device, precision, batch, workers, sha256 (of the annotations that were read)
    predict          done, total: rows
    checked          a Remark of one check before training; see check_result.py
    profiled         what was measured of a training with --profile; see profile.py
    nonfinite        text (the message), update (done before), quantity (not finite: loss, gradient, weights),
                     bad_parameters; of a loss or gradient also module (the first one), inputs_finite (whether
                     its were), ids (of the pass), bad_ids (of its rows), bad_fields (of the batch)
    exported         seconds that the export of the model took
    serving          address, where a worker that stays warm waits for its parent; see serving.py
    run_ended        the attempt has ended; its outcome is in exit.json
    attempt_failed   next: what the next attempt has less of; written by the parent

Each is one write at the end of the file. A prediction has a file of its own in its attempt's folder, since
Windows does not keep the writes of two processes apart. In earlier versions, ``run_ended``
also has the outcome.
"""

from __future__ import annotations

from mmf_win.protocol.attempt import AttemptFolder, AttemptRequest, Precision
from mmf_win.protocol.events import MAX_TIMESTAMP, Event, EventReader, read_events
from mmf_win.protocol.outcome import AttemptOutcome, OutcomeKind

__all__ = [
    "MAX_TIMESTAMP",
    "AttemptFolder",
    "AttemptOutcome",
    "AttemptRequest",
    "Event",
    "EventReader",
    "OutcomeKind",
    "Precision",
    "read_events",
]
