"""The child's entry: request.json → cures → hooks → MMF's own ``run`` → exit.json.

Run as ``python -m mmf_win.bridge.worker <attempt>/request.json``. Nothing here assumes that the process is
alone: MMF may spawn one process a GPU, and a DataLoader under ``spawn`` one a worker. Each of them imports
this module as ``__mp_main__`` before it unpickles anything of MMF, and so gets the cures and hooks too.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from argparse import Namespace
from pathlib import Path

from mmf_win.files import write_json
from mmf_win.protocol import EventLog, Exit, Request

_REQUEST = "MMFW_REQUEST"


def main(request_file: Path) -> int:
    """Do what the request says and write ``exit.json`` beside it; 0 when that went well."""
    os.environ[_REQUEST] = str(request_file)
    request = Request.load(request_file)
    log = EventLog(Path(request.run_dir, "events.jsonl"))
    log.write("run_started", action=request.action, pid=os.getpid(), **versions())
    try:
        prepare(request)
        run(request)
        end = Exit("ok")
    except BaseException as error:
        from mmf_win.bridge.outcome import classify

        traceback.print_exc()
        end = classify(error)
    log.write("run_ended", action=request.action, outcome=end.outcome)
    end.save(Path(request.attempt_dir, "exit.json"))
    return 0 if end.outcome == "ok" else 1


def prepare(request: Request) -> None:
    """Make MMF importable and put the hooks in place, in this process."""
    from mmf_win.bridge import compat
    from mmf_win.bridge.versions import read_version

    root = Path(request.mmf)
    version = read_version(root)
    compat.install(root, version)
    compat.anomaly.wanted = request.detect_anomaly
    from mmf_win.bridge import hooks

    hooks.register(request, version)


def run(request: Request) -> None:
    """Call MMF's ``run``, and order the predictions that it wrote."""
    from mmf_cli.run import run as mmf_run

    options = mmf_options(request)
    if request.epochs is not None:
        options += ["training.max_updates", str(updates_of(request.epochs, options))]
    predicting = request.action == "predict"
    mmf_run([*options, *_pairs(request)], predict=predicting)
    if predicting:
        from mmf_win.bridge.predictions import collect

        collect(request)


def mmf_options(request: Request) -> list[str]:
    """MMF's options, as key and value in turn, that name the configuration written for this attempt."""
    from mmf_win.bridge.versions import config_path

    config = Path(request.attempt_dir, "mmf.yaml")
    base = config_path(Path(request.mmf), request.base_config) if request.base_config else None
    # JSON is YAML; an absolute include is taken as it is by every MMF.
    write_json(config, {"includes": [str(base)] if base else [], **request.settings})
    return ["config", str(config), "model", request.model, "dataset", "hateful_memes"]


def updates_of(epochs: int, options: list[str]) -> int:
    """How many updates ``epochs`` passes over the training rows are.

    MMF counts epochs in a way of its own in each version, and its learning-rate schedules know only updates.
    """
    from mmf.utils.configuration import Configuration

    from mmf_win.dataset.annotations import count_rows

    config = Configuration(Namespace(config_override=None, opts=list(options))).get_config()
    dataset = config.dataset_config.hateful_memes
    rows = sum(count_rows(Path(dataset.data_dir, file)) for file in dataset.annotations.train)
    batches = math.ceil(rows / int(config.training.batch_size))
    per_update = int(config.training.get("update_frequency") or 1)
    return epochs * math.ceil(batches / per_update)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for package in ("mmf-win", "torch", "transformers", "omegaconf"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _pairs(request: Request) -> list[str]:
    from mmf_win.bridge.settings import as_pairs

    return as_pairs(request.overrides)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

if __name__ == "__mp_main__" and _REQUEST in os.environ:
    prepare(Request.load(Path(os.environ[_REQUEST])))
