"""The patches against the real MMF, of both versions where both are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from mmf_win import compat
from mmf_win.compat.patch import Patch
from mmf_win.upstream.versions import read_version
from tests.compat import probe
from tests.worlds import tiny_mmf
from tests.worlds.tiny_mmf import BOX_COUNT, FEATURE_SIZE, TinyWorld

pytestmark = pytest.mark.torch

_ROOT = Path(probe.__file__).parents[2]
_NOT_FINITE = "the weights are not finite after update 2 (weight); not saved"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """Data, word vectors and a BERT."""
    return tiny_mmf.build(tmp_path_factory.mktemp("tiny") / "world мир")


@pytest.fixture(scope="module")
def answers(mmf_root: Path, world: TinyWorld) -> dict[str, Any]:
    """Return the probe's answers."""
    done = subprocess.run(
        [sys.executable, "-m", probe.__name__, str(mmf_root), str(world.root)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},  # as a worker has it
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_no_patch_waits_for_words_that_mmf_does_not_have(mmf_root: Path) -> None:
    version = read_version(mmf_root)
    patches = [patch for patch in compat.PATCHES if version in patch.mmf_versions]
    idle = {patch.name for patch in patches if not patch.is_active(mmf_root, version)}
    for_later = {patch.name for patch in patches if _is_for_a_later_transformers(patch)}
    assert for_later <= idle <= for_later | {"torchvision-operators"}


def _is_for_a_later_transformers(patch: Patch) -> bool:
    library, _, lowest = patch.library.partition(" >= ")
    return library == "transformers" and Version(metadata.version(library)) < Version(lowest)


def _of_a_batch(rows: int) -> dict[str, Any]:
    return {"text": [rows, 6], "image": [rows, 5], "both": [[rows, 6], [rows, 5]]}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (probe.imported, [[], []]),
        (probe.adamw, {"weight_decay": 0.0, "eps": 1e-6, "lr": 1e-3, "betas": [0.9, 0.999]}),
        (probe.late, [1.0, pytest.approx(2 / 3)]),
        (probe.left_alone_by_the_compiler, [True, 2, 1]),
        (probe.predictions, True),
        (probe.found_when_asked_for, [False, "COCOBuilder", None]),
        (probe.features, [[BOX_COUNT, FEATURE_SIZE], BOX_COUNT, True, 0]),
        (probe.hostile_files, [True, False, [100, 2048], 10]),
        (probe.pictures, [[0x12] * 3, [[2, 4], [4, 2], [2, 4]], 1]),
        (probe.retries_offline, [1, True]),
        (probe.small_batches, {str(rows): _of_a_batch(rows) for rows in (1, 2)}),
        (probe.word_vectors, [[*tiny_mmf.WORDS], 300, True]),
        (probe.random_vectors, pytest.approx([0, 1], abs=0.1)),
        (probe.text_link, {"a": 1, "b": 2}),
        (probe.seeds, [1, 2]),
        (probe.weights_in_brackets, ["weight"]),
        (probe.saved_weights, [["saving 2", "written", "checkpoint"], [_NOT_FINITE], [_NOT_FINITE]]),
        (probe.csv_report, 'id,text\r\n8291,a\r\n1,"Привет,\n世界"\r\n'),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mmf_does_as_it_should(answers: dict[str, Any], question: Callable[..., Any], answer: Any) -> None:
    """Each question of the probe says what it asks and what fails without a patch."""
    assert answers[question.__name__] == answer
