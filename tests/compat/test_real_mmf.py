"""Patches on the real MMF, in both versions if both are installed."""

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
    """Create data, word vectors and a BERT."""
    return tiny_mmf.build(tmp_path_factory.mktemp("tiny") / "world мир")


@pytest.fixture(scope="module")
def results(mmf_root: Path, world: TinyWorld) -> dict[str, Any]:
    """Run the probes and return their results."""
    process = subprocess.run(
        [sys.executable, "-m", probe.__name__, str(mmf_root), str(world.root)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},  # as in a worker
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return dict(json.loads(process.stdout.splitlines()[-1]))


def test_patches_of_this_mmf_version_find_the_text_that_they_replace(mmf_root: Path) -> None:
    version = read_version(mmf_root)
    patches = [patch for patch in compat.PATCHES if version in patch.mmf_versions]
    inactive = {patch.name for patch in patches if not patch.is_active(mmf_root, version)}
    for_later_transformers = {patch.name for patch in patches if _needs_later_transformers(patch)}
    assert for_later_transformers <= inactive <= for_later_transformers | {"torchvision-operators"}


def _needs_later_transformers(patch: Patch) -> bool:
    library, _, lowest = patch.library.partition(" >= ")
    return library == "transformers" and Version(metadata.version(library)) < Version(lowest)


def _expected_shapes(rows: int) -> dict[str, Any]:
    return {"text": [rows, 6], "image": [rows, 5], "both": [[rows, 6], [rows, 5]]}


@pytest.mark.parametrize(
    ("run_probe", "expected"),
    [
        (probe.list_needless_imports, [[], []]),
        (probe.read_adamw_defaults, {"weight_decay": 0.0, "eps": 1e-6, "lr": 1e-3, "betas": [0.9, 0.999]}),
        (probe.calculate_metrics, [1.0, pytest.approx(2 / 3)]),
        (probe.disable_compiler, [True, 2, 1]),
        (probe.compare_predictions, True),
        (probe.look_up_lazy_modules, [False, "COCOBuilder", None]),
        (probe.read_features, [[BOX_COUNT, FEATURE_SIZE], BOX_COUNT, True, 0]),
        (probe.read_unsafe_files, [True, False, [100, 2048], 10]),
        (probe.read_images, [[0x12] * 3, [[2, 4], [4, 2], [2, 4]], 1]),
        (probe.count_offline_retries, [1, True]),
        (probe.encode_small_batches, {str(rows): _expected_shapes(rows) for rows in (1, 2)}),
        (probe.load_word_vectors, [[*tiny_mmf.WORDS], 300, True]),
        (probe.measure_random_vectors, pytest.approx([0, 1], abs=0.1)),
        (probe.load_text_link, {"a": 1, "b": 2}),
        (probe.count_numbers_by_seed, [1, 2]),
        (probe.load_weights_from_brackets, ["weight"]),
        (probe.save_weights, [["saving 2", "written", "checkpoint"], [_NOT_FINITE], [_NOT_FINITE]]),
        (probe.write_csv_report, 'id,text\r\n8291,a\r\n1,"Привет,\n世界"\r\n'),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_patched_mmf_gives_expected_results(
    results: dict[str, Any], run_probe: Callable[..., Any], expected: Any
) -> None:
    """See probe.py for a description of each probe."""
    assert results[run_probe.__name__] == expected
