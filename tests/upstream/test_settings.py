"""Settings that mmfw adds to MMF's configuration; these tests do not need MMF."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.paths import MmfPaths
from mmf_win.upstream import default_settings
from mmf_win.upstream.versions import has_key

SPLITS = {"train": "train", "val": "dev", "test": "test"}


@pytest.mark.parametrize("version", ["1.0.0rc10", "1.0.0rc12"])
def test_only_keys_of_the_mmf_version_are_set(version: str) -> None:
    training = default_settings.common_settings("mmbt", SPLITS, version)["training"]
    assert ("stdout_capture" in training) == has_key(version, "training.stdout_capture")
    assert ("colored_logs" in training) == has_key(version, "training.colored_logs")
    assert ("trainer" in training) == (not has_key(version, "training.callbacks"))
    precision = default_settings.add_hooks({}, version, "bf16").get("training", {}).get("fp16")
    assert precision is (False if has_key(version, "training.fp16") else None)
    evaluation = default_settings.prediction_settings(Path("best.ckpt"), version)["evaluation"]
    assert ("reporter" in evaluation) == has_key(version, "evaluation.reporter")


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [
        *((None, 1, "0"), ("2,3", 1, "2"), ("GPU-8f2a,1", 1, "GPU-8f2a"), ("", 1, "")),
        *((None, 2, "0,1"), ("2,3,5", 2, "2,3"), ("2,3", 0, "-1"), (None, 0, "-1")),
    ],
)
def test_worker_gets_the_first_visible_gpus(visible: str | None, count: int, expected: str) -> None:
    environment = {"PATH": "/bin", "WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    assert default_settings.limit_gpus(environment, count) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": expected}


@pytest.mark.parametrize(("updates", "interval"), [(1, 1), (9, 1), (100, 20), (22000, 1000)])
def test_short_run_validates_at_least_five_times(updates: int, interval: int) -> None:
    assert default_settings.training_settings(updates)["training"]["evaluation_interval"] == interval


def test_training_does_not_run_on_the_test_set() -> None:
    assert default_settings.training_settings(None) == {"run_type": "train_val"}


def test_mmfw_callback_is_added_to_those_of_a_preset() -> None:
    settings = {"training": {"callbacks": [{"type": "mine", "params": {}}], "seed": 1}}
    training = default_settings.add_hooks(settings, "1.0.0rc12", None)["training"]
    assert [callback["type"] for callback in training["callbacks"]] == ["mine", "mmfw"]
    assert training["seed"] == 1 and "fp16" not in training
    assert default_settings.add_hooks(settings, "1.0.0rc10", "bf16") == settings


def test_prediction_never_copies_only_the_pretrained_part() -> None:
    checkpoint = default_settings.prediction_settings(Path("best.ckpt"), "1.0.0rc10")["checkpoint"]
    assert checkpoint["resume_pretrained"] is False and checkpoint["resume_zoo"] is None
    assert checkpoint["resume"] is False, "with resume, MMF would load current.ckpt instead of the file"


def environment(mmf_paths: MmfPaths, *, offline: bool) -> dict[str, str]:
    """Return the environment of a worker."""
    folder = mmf_paths.save_dir
    return default_settings.worker_environment(mmf_paths, folder / "c", folder / "l", folder / "r", offline=offline)


def test_openmp_spin_time_is_limited_unless_the_user_sets_it(
    mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert int(environment(mmf_paths, offline=True)["GOMP_SPINCOUNT"]) < 300_000, (
        "the value must be below the default of libgomp"
    )
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in environment(mmf_paths, offline=True)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment(mmf_paths, offline=True)["GOMP_SPINCOUNT"] == "7"


@pytest.mark.parametrize("offline", [True, False])
def test_worker_reads_utf8_and_downloads_only_if_online(
    mmf_paths: MmfPaths, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMFW_PASSWORD", "secret")
    env = environment(mmf_paths, offline=offline)
    assert env["PYTHONUTF8"] == "1"
    assert "secret" not in env.values(), "MMF must not get the password of the archive"
    assert env["MMF_DATA_DIR"] == str(mmf_paths.data_dir)
    assert (env.get("HF_HUB_OFFLINE") == "1") == offline
    if offline:
        assert Path(env["MMF_DATASET_ZOO"]).is_file()


def test_worker_environment_omits_harmful_python_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*default_settings.HARMFUL_VARIABLES, "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "1")
    assert environment(MmfPaths.resolve(), offline=True).keys() & {
        *default_settings.HARMFUL_VARIABLES,
        "PYTHONHASHSEED",
    } == {"PYTHONHASHSEED"}
