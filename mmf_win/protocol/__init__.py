"""Files by which the parent and the worker communicate.

::

    parent ── request.json ──▶ worker       what to do
    parent ◀── events.jsonl ── worker       what happens; append-only, one JSON object per line
    parent ── stop ──────────▶ worker       an empty file: save and exit
    parent ◀── exit.json ───── worker       the outcome; written last

Files need neither signals nor sockets, so they work on Windows and Linux, and nothing is lost if the parent
is killed. ``events.jsonl`` is also the history of the run. Readers skip unknown kinds and fields.

An event has ``t`` in seconds since the epoch, ``kind``, ``attempt``, and the fields of its kind::

    run_started      pid, and the versions that a result depends on
    loaded           source (a file of weights, or the name of a model), copied, total (tensors of the model),
                     missing (names of the first tensors that the source did not set)
    train_started    update (the first one), max_updates, device, precision, batch, micro_batch, searching
                     (whether this only measures micro-batches), workers (of the DataLoader), processes (that
                     train together), seed, parameters (their number), known_fit (whether the micro-batch
                     fitted before), fit (what that depends on), data (as in TrainTask.splits_read; null if it
                     is not known)
    micro_batch      rows (of a micro-batch from here on), found (whether the search is finished)
    train            update, max_updates, epoch, loss, lr, updates_per_s, max_mem_mib
    val              update, metrics (auroc, accuracy, loss and more; a run that an earlier version began has
                     MMF's names, as hateful_memes/roc_auc, which EventReader translates), final (whether this
                     is the best checkpoint, after training), data (as above)
    saving           update; a checkpoint is about to be written
    checkpoint       update; it is written, with this sha256; best (whether also as the best one so far)
    note             text; information for the user
    alive            progress that has no event of its own
    predict_started  device, precision, batch, workers, sha256 (of the annotation file)
    predict          done, total: rows
    checked          a CheckResult of one check before training; see check_result.py
    profiled         measurements of a training with --profile; see runs/profile_advice.py
    nonfinite        text (the message), update (completed before), quantity (not finite: loss, gradient,
                     weights), bad_parameters; for a loss or gradient also module (the first one),
                     inputs_finite (whether its inputs were finite), ids (of the micro-batch), bad_ids (of its
                     affected rows), bad_fields (of the batch)
    exported         seconds that the export of the model took
    serving          address at which a model process waits for its parent; see serving.py
    run_ended        the attempt has ended; its outcome is in exit.json
    attempt_failed   next: the limit that the next attempt reduces; written by the parent

Each event is appended in one write. A prediction writes to a file in the folder of its attempt, since Windows
does not keep the writes of two processes apart. In files of earlier versions, ``run_ended`` also has the
outcome.
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
