"""Locations of files in a tree of MMF, and zoo entries; the trees are small fakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.errors import MmfEnvironmentError
from mmf_win.paths import MmfPaths
from mmf_win.upstream.versions import config_path, follow_text_links, has_key, read_version
from mmf_win.upstream.zoo import Zoo
from tests.worlds.memes import write_tree

MMBT = ("projects/hateful_memes/configs/mmbt/defaults.yaml", "projects/mmbt/configs/hateful_memes/defaults.yaml")


@pytest.fixture
def wheel(user_dir: Path) -> Path:
    """Write a small tree with the layout of the PyPI wheel: everything is inside the package."""
    files = {
        "mmf/version.py": b'__version__ = "1.0.0rc10"\n',
        "mmf/configs/models/mmbt/pretrain.yaml": b"a: 1\n",
        "mmf/projects/hateful_memes/configs/mmbt/defaults.yaml": b"b: 1\n",
        "mmf/projects/mmbt/configs/hateful_memes/defaults.yaml": b"b: 2\n",
    }
    return write_tree(files, user_dir / "wheel")


@pytest.fixture
def unpacked(user_dir: Path) -> Path:
    """Write a small tree with the layout of the repository, in which Git stored links as text."""
    real = "mmbt/configs/hateful_memes/defaults.yaml"
    files = {
        "mmf/version.py": b'\n__version__ = "1.0.0rc12"\n',
        "mmf/projects": b"../projects",
        "projects/hateful_memes/configs/mmbt/defaults.yaml": f"../../../{real}".encode(),
        f"projects/{real}": b"includes:\n- ./other.yaml\n",
    }
    return write_tree(files, user_dir / "unpacked")


class TestConfigPath:
    def test_wheel_has_a_separate_file_for_each_name(self, wheel: Path) -> None:
        for name in (*MMBT, "configs/models/mmbt/pretrain.yaml"):
            assert config_path(wheel, name) == (wheel / "mmf" / name).resolve()

    def test_text_links_in_the_repository_lead_to_the_real_file(self, unpacked: Path) -> None:
        real = (unpacked / MMBT[1]).resolve()
        for name in (*MMBT, f"mmf/{MMBT[0]}"):
            assert config_path(unpacked, name) == real

    def test_absolute_path_is_not_changed(self, wheel: Path, user_dir: Path) -> None:
        mine = user_dir / "mine.yaml"
        mine.write_text("{}", encoding="utf-8")
        assert config_path(wheel, str(mine)) == mine.resolve()

    def test_unknown_name_suggests_the_nearest(self, wheel: Path) -> None:
        with pytest.raises(MmfEnvironmentError, match=r"no configuration projects/mmbt/.*/default\.yaml") as caught:
            config_path(wheel, "projects/mmbt/configs/hateful_memes/default.yaml")
        assert caught.value.hint == f"did you mean {MMBT[1]}?"


class TestTextLinks:
    def test_text_link_may_replace_a_parent_folder(self, unpacked: Path) -> None:
        assert follow_text_links(unpacked / "mmf" / MMBT[1]) == unpacked / MMBT[1]

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"a: 1\n", b"nowhere.yaml", b'{"a": "' + b"x" * 400 + b'"}', b"\x89PNG\xff"]
    )
    def test_short_files_are_not_mistaken_for_links(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "short.yaml"
        path.write_bytes(content)
        assert follow_text_links(path) == path

    def test_circular_link_is_an_error(self, tmp_path: Path) -> None:
        write_tree({"a.yaml": b"b.yaml", "b.yaml": b"a.yaml"}, tmp_path)
        with pytest.raises(MmfEnvironmentError, match="circular link"):
            follow_text_links(tmp_path / "a.yaml")
        assert follow_text_links(tmp_path / "no.yaml") == tmp_path / "no.yaml"


class TestVersions:
    def test_version_is_read_as_text(self, wheel: Path, unpacked: Path) -> None:
        assert read_version(wheel) == "1.0.0rc10"
        assert read_version(unpacked) == "1.0.0rc12"

    def test_tree_without_version_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(MmfEnvironmentError, match=r"version\.py: cannot be read"):
            read_version(tmp_path)
        write_tree({"mmf/version.py": b"version = 1\n"}, tmp_path)
        with pytest.raises(MmfEnvironmentError, match=r"version\.py: no version found"):
            read_version(tmp_path)

    def test_unsupported_version_names_the_supported_ones(self) -> None:
        with pytest.raises(MmfEnvironmentError, match=r"0\.9 is not supported.*1\.0\.0rc10, 1\.0\.0rc12"):
            has_key("0.9", "training.callbacks")


@pytest.mark.parametrize("version", [{}, {"version": "1.0"}])
def test_zoo_entry_may_lack_a_version(user_dir: Path, mmf_paths: MmfPaths, version: dict[str, str]) -> None:
    resource = {"url": "mmf://features.tar.gz", "file_name": "features.tar.gz"}
    zoo = user_dir / "zoo.yaml"
    zoo.write_text(json.dumps({"hateful_memes": {"defaults": {**version, "resources": {"features": resource}}}}))
    entry = Zoo(user_dir, mmf_paths, str(zoo)).dataset_entry("features")
    assert entry is not None and entry.version == version.get("version")
    assert entry.url.startswith("https://") and entry.archive.name == "features.tar.gz"
