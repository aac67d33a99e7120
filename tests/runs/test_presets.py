"""Presets, errors of invalid ones, and published scores by split."""

from pathlib import Path

import pytest

from mmf_win.dataset.convert import convert
from mmf_win.dataset.published_results import PublishedScore, find_published_score, missing_score_reason
from mmf_win.errors import UsageError
from mmf_win.paths import MmfPaths
from mmf_win.runs import presets
from tests.worlds import memes
from tests.worlds.tools import MmfwRunner

PUBLISHED = {
    "image_grid", "image_region", "text_bert", "late_fusion", "concat_bert", "mmbt_grid",
    "mmbt_region", "vilbert", "visual_bert", "vilbert_cc", "visual_bert_coco",
}  # fmt: skip
NUMBERS = {"val": {"accuracy": 58.2, "auroc": 68.57}, "test": {"auroc": [67.92, 0.87]}}


def write_file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_preset_is_complete(name: str) -> None:
    preset = presets.load_preset(name)
    assert preset.name == name and preset.title and preset.model
    assert preset.config is not None and preset.config.endswith(".yaml")
    for split in ("val", "test"):
        for metric in ("accuracy", "auroc"):
            number = preset.published[split][metric]
            assert 50 < (number[0] if isinstance(number, list) else number) < 100


def test_user_preset_extends_shipped_preset_or_adjacent_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "моё 实验.yaml", "extends: mmbt_grid\nsettings: {training: {batch_size: 8}}\n")
    preset = presets.load_preset(str(path))
    assert (preset.name, preset.model) == ("моё 实验", "mmbt")
    assert preset.config == presets.load_preset("mmbt_grid").config
    assert preset.settings == {"training": {"batch_size": 8}}
    user_preset = write_file(tmp_path / "own.yaml", "extends: моё 实验.yaml\nsettings: {training: {seed: 2}}\n")
    assert presets.load_preset(str(user_preset)).settings == {"training": {"batch_size": 8, "seed": 2}}


def test_config_is_found_next_to_preset_and_empty_settings_are_accepted(tmp_path: Path) -> None:
    config = write_file(tmp_path / "mmf.yaml", "training: {batch_size: 4}\n")
    user_preset = presets.load_preset(
        str(write_file(tmp_path / "own.yaml", "model: mmbt\nconfig: mmf.yaml\nsettings:\n"))
    )
    assert (user_preset.config, user_preset.settings) == (str(config), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: mmbt\n", "unknown key 'models'"),
        ("title: x\n", "key 'model' is missing"),
        ("- 1\n", "a preset must be a mapping"),
        ("model: [\n", "not valid YAML"),
        ("5\n", "expected a mapping of keys|Invalid"),
        ("title: x${\n", "not valid YAML"),
        ("model: mmbt\nsettings: 5\n", "'settings' must be a mapping"),
        ("model: [mmbt]\n", "'model' must be a string"),
        ("model: mmbt\nconfig: [a]\n", "'config' must be a string"),
        ("model: mmbt\nsettings: {training: fast}\n", "'training' in 'settings' must be a mapping"),
        ("extends: demo\nsettings: {training: [1]}\n", "cannot be merged"),
        ("extends: wrong.yaml\n", "extends itself"),
        ("model: mmbt\nsettings: {training.max_updates: 3}\n", "write training.max_updates as nested keys"),
    ],
)
def test_invalid_preset_is_an_error_naming_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = write_file(tmp_path / "wrong.yaml", text)
    with pytest.raises(UsageError, match=message) as caught:
        presets.load_preset(str(path))
    assert "wrong.yaml" in str(caught.value)


def test_missing_preset_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: file not found"):
        presets.load_preset("nowhere.yaml")


def test_hint_for_mmf_configuration_gives_a_valid_preset(tmp_path: Path) -> None:
    config = write_file(tmp_path / "of mmf.yaml", "includes: []\nmodel_config: {mmbt: {}}\n")
    with pytest.raises(UsageError) as caught:
        presets.load_preset(str(config))
    assert caught.value.hint is not None
    lines = caught.value.hint.splitlines()[1:]
    preset = presets.load_preset(str(write_file(tmp_path / "own.yaml", "\n".join(line.strip() for line in lines))))
    assert (preset.model, preset.config) == ("mmbt", str(config))


def test_list_of_presets_names_split_of_each_score(mmfw: MmfwRunner) -> None:
    mmfw("train", "--list")
    header, *rows = mmfw.out.splitlines()
    for column in ("dev_seen acc", "dev_seen AUROC", "test_seen acc", "test_seen AUROC"):
        assert column in header
    [row] = [row for row in rows if row.startswith("vilbert_cc ")]
    assert row.split()[-5:-1] == ["61.40", "70.07", "61.10±1.56", "70.03±1.77"]
    assert "dev_seen and test_seen" in mmfw.err
    published = {preset["name"]: preset["published"] for preset in mmfw.json("train", "--list")}
    assert published["vilbert_cc"]["dev_seen"] == {"accuracy": 61.4, "auroc": 70.07}
    assert published["vilbert_cc"]["test_seen"]["auroc"] == [70.03, 1.77]
    assert published["demo"] == {}


def test_published_scores_apply_to_seen_and_phase_1_splits() -> None:
    for split in ("dev_seen", "dev"):
        assert find_published_score(NUMBERS, split, "auroc") == PublishedScore(pytest.approx(0.6857), None, split, 500)
    for split in ("test_seen", "test"):
        score = PublishedScore(pytest.approx(0.6792), pytest.approx(0.0087), split, 1000)
        assert find_published_score(NUMBERS, split, "auroc") == score


@pytest.mark.parametrize("split", ["dev_unseen", "test_unseen", "train", "mine", "val", ""])
def test_other_splits_have_no_published_score(split: str) -> None:
    assert find_published_score(NUMBERS, split, "auroc") is None
    assert split in missing_score_reason(split) and "dev_seen and test_seen" in missing_score_reason(split)


def test_user_datasets_have_no_published_scores(user_dir: Path) -> None:
    tables = {f"{split}.csv": f"img,text,label\n{split}.png,hello,1\n".encode() for split in ("train", "dev")}
    images = {f"{split}.png": memes.image(n) for n, split in enumerate(("train", "dev"))}
    datasets = {
        "own": tables | images,
        "released": memes.dataset_files(),
        "first": memes.dataset_files(memes.PHASE_1_SPLITS),
    }
    has_scores = {}
    for name, files in datasets.items():
        mmf_paths = MmfPaths.resolve(user_dir / f"data {name}")
        convert(memes.write_tree(files, user_dir / name), mmf_paths)
        preset = presets.load_preset("mmbt_grid")
        request = presets.build_request(preset, {"val": "dev"}, mmf_paths)
        has_scores[name] = request.published_scores == preset.published
    assert has_scores == {"own": False, "released": True, "first": True}


@pytest.mark.parametrize("numbers", [{}, {"test": {}}, {"test": {"auroc": None}}, NUMBERS])
def test_metric_missing_from_paper_is_none(numbers: dict[str, object]) -> None:
    assert find_published_score(numbers, "test_seen", "accuracy") is None


@pytest.mark.parametrize("number", [-1, 101, 10**40, float("inf"), float("nan"), "1", None])
def test_invalid_percentage_is_ignored(number: object) -> None:
    for value in (number, [50.0, number]):
        assert find_published_score({"test": {"auroc": value}}, "test_seen", "auroc") is None
