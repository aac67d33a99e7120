"""Folders of tasks as mlrunner leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def task(
    output: Path, name: str, params: Mapping[str, object], accuracies: Sequence[Sequence[float]] = ()
) -> Path:
    """A task's folder.

    Args:
        output: where to make it.
        name: of the folder.
        params: the task's parameters.
        accuracies: of each of its trainings, after each iteration; there is a log of each.
    """
    import yaml

    folder = output / name
    folder.mkdir(parents=True)
    logs = [folder / f"log.train.2026010{day}.120000" for day, _ in enumerate(accuracies, start=1)]
    script = f"CUDA_VISIBLE_DEVICES=0 python main.py > {logs[-1] if logs else 'log'} 2>&1"
    about = {"_name": name, "_output": str(folder), "_scripts": {"train": script}, "_time": "20260101.120000"}
    dumped = yaml.dump({**about, **params}, width=1_000_000)
    (folder / "param").write_text(dumped, encoding="utf-8")
    (folder / "stat").write_text("train: finished\n", encoding="utf-8")
    for log, values in zip(logs, accuracies, strict=True):
        lines = [f"Iter {n}: loss=1.5, test_acc={value}, duration=0:08\n" for n, value in enumerate(values)]
        log.write_text("".join(lines), encoding="utf-8")
    return folder
