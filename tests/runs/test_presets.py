from pathlib import Path

import pytest

from mmf_win.errors import UsageError
from mmf_win.runs import presets

PUBLISHED = {
    "image_grid", "image_region", "text_bert", "late_fusion", "concat_bert", "mmbt_grid",
    "mmbt_region", "vilbert", "visual_bert", "vilbert_cc", "visual_bert_coco",
}  # fmt: skip


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_preset_is_complete(name: str) -> None:
    preset = presets.load(name)
    assert preset.name == name and preset.title and preset.model
    assert preset.config is not None and preset.config.endswith(".yaml")
    for split in ("val", "test"):
        for metric in ("accuracy", "auroc"):
            number = preset.published[split][metric]
            assert 50 < (number[0] if isinstance(number, list) else number) < 100


def test_a_preset_of_the_users_own_extends_one_of_mmfws_or_a_file_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "моё 实验.yaml", "extends: mmbt_grid\nsettings: {training: {batch_size: 8}}\n")
    preset = presets.load(str(path))
    assert (preset.name, preset.model) == ("моё 实验", "mmbt")
    assert preset.config == presets.load("mmbt_grid").config
    assert preset.settings == {"training": {"batch_size": 8}}
    own = write(tmp_path / "own.yaml", "extends: моё 实验.yaml\nsettings: {training: {seed: 2}}\n")
    assert presets.load(str(own)).settings == {"training": {"batch_size": 8, "seed": 2}}


def test_a_config_beside_the_preset_is_found_and_an_empty_settings_key_is_no_settings(tmp_path: Path) -> None:
    config = write(tmp_path / "mmf.yaml", "training: {batch_size: 4}\n")
    own = presets.load(str(write(tmp_path / "own.yaml", "model: mmbt\nconfig: mmf.yaml\nsettings:\n")))
    assert (own.config, own.settings) == (str(config), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: mmbt\n", "unknown key 'models'"),
        ("title: x\n", "needs the key 'model'"),
        ("- 1\n", "a preset is a mapping"),
        ("model: [\n", "not valid YAML"),
        ("5\n", "a mapping of keys is expected|Invalid"),
        ("title: x${\n", "not valid YAML"),
        ("model: mmbt\nsettings: 5\n", "'settings' must be a mapping"),
        ("model: [mmbt]\n", "'model' must be a text"),
        ("model: mmbt\nconfig: [a]\n", "'config' must be a text"),
        ("model: mmbt\nsettings: {training: fast}\n", "'training' in 'settings' must be a mapping"),
        ("extends: demo\nsettings: {training: [1]}\n", "do not fit"),
        ("extends: wrong.yaml\n", "extends itself"),
        ("model: mmbt\nsettings: {training.max_updates: 3}\n", "write training.max_updates as nested keys"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "wrong.yaml", text)
    with pytest.raises(UsageError, match=message) as caught:
        presets.load(str(path))
    assert "wrong.yaml" in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: there is no such file"):
        presets.load("nowhere.yaml")


def test_a_configuration_of_mmfs_own_is_named_by_the_lines_that_the_hint_says(tmp_path: Path) -> None:
    config = write(tmp_path / "of mmf.yaml", "includes: []\nmodel_config: {mmbt: {}}\n")
    with pytest.raises(UsageError) as caught:
        presets.load(str(config))
    assert caught.value.hint is not None
    lines = caught.value.hint.splitlines()[1:]
    preset = presets.load(str(write(tmp_path / "own.yaml", "\n".join(line.strip() for line in lines))))
    assert (preset.model, preset.config) == ("mmbt", str(config))
