"""Where things are in a tree of MMF; the trees here are made up, a few files each."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.errors import MmfError
from mmf_win.upstream.versions import config_path, follow_text_links, has_key, read_version


def tree(root: Path, files: dict[str, str]) -> Path:
    """Files with these texts."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return root


@pytest.fixture
def wheel(user_dir: Path) -> Path:
    """A made-up tree in the shape of the wheel on PyPI: everything inside the package."""
    return tree(
        user_dir / "wheel",
        {
            "mmf/version.py": '__version__ = "1.0.0rc10"\n',
            "mmf/configs/models/mmbt/pretrain.yaml": "a: 1\n",
            "mmf/projects/hateful_memes/configs/mmbt/defaults.yaml": "b: 1\n",
            "mmf/projects/mmbt/configs/hateful_memes/defaults.yaml": "b: 2\n",
        },
    )


@pytest.fixture
def unpacked(user_dir: Path) -> Path:
    """A made-up tree in the shape of the repository, where git wrote its links as text."""
    real = "mmbt/configs/hateful_memes/defaults.yaml"
    return tree(
        user_dir / "unpacked",
        {
            "mmf/version.py": '\n__version__ = "1.0.0rc12"\n',
            "mmf/projects": "../projects",
            "projects/hateful_memes/configs/mmbt/defaults.yaml": f"../../../{real}",
            f"projects/{real}": "includes:\n- ./other.yaml\n",
        },
    )


class TestConfigPath:
    def test_in_the_wheel_every_name_has_a_file_of_its_own(self, wheel: Path) -> None:
        for name in (
            "projects/hateful_memes/configs/mmbt/defaults.yaml",
            "projects/mmbt/configs/hateful_memes/defaults.yaml",
            "configs/models/mmbt/pretrain.yaml",
        ):
            assert config_path(wheel, name) == (wheel / "mmf" / name).resolve()

    def test_in_the_repository_text_links_lead_to_the_real_file(self, unpacked: Path) -> None:
        real = (unpacked / "projects/mmbt/configs/hateful_memes/defaults.yaml").resolve()
        for name in (
            "projects/hateful_memes/configs/mmbt/defaults.yaml",
            "projects/mmbt/configs/hateful_memes/defaults.yaml",
            "mmf/projects/hateful_memes/configs/mmbt/defaults.yaml",
        ):
            assert config_path(unpacked, name) == real

    def test_an_absolute_path_is_taken_as_it_is(self, wheel: Path, user_dir: Path) -> None:
        mine = user_dir / "mine.yaml"
        mine.write_text("{}", encoding="utf-8")
        assert config_path(wheel, str(mine)) == mine.resolve()

    def test_an_unknown_name_is_answered_with_near_ones(self, wheel: Path) -> None:
        with pytest.raises(MmfError, match=r"no configuration projects/mmbt/.*/default\.yaml") as caught:
            config_path(wheel, "projects/mmbt/configs/hateful_memes/default.yaml")
        assert "projects/mmbt/configs/hateful_memes/defaults.yaml" in str(caught.value.hint)


class TestTextLinks:
    def test_a_link_may_stand_for_a_folder_on_the_way(self, unpacked: Path) -> None:
        path = unpacked / "mmf/projects/mmbt/configs/hateful_memes/defaults.yaml"
        assert follow_text_links(path) == unpacked / "projects/mmbt/configs/hateful_memes/defaults.yaml"

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"a: 1\n", b"nowhere.yaml", b'{"a": "' + b"x" * 400 + b'"}', b"\x89PNG\xff"]
    )
    def test_other_files_are_no_links_however_short(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "short.yaml"
        path.write_bytes(content)
        assert follow_text_links(path) == path

    def test_a_circle_is_an_error(self, tmp_path: Path) -> None:
        tree(tmp_path, {"a.yaml": "b.yaml", "b.yaml": "a.yaml"})
        with pytest.raises(MmfError, match="circle"):
            follow_text_links(tmp_path / "a.yaml")
        assert follow_text_links(tmp_path / "no.yaml") == tmp_path / "no.yaml"


class TestVersions:
    def test_is_read_as_text(self, wheel: Path, unpacked: Path) -> None:
        assert read_version(wheel) == "1.0.0rc10"
        assert read_version(unpacked) == "1.0.0rc12"

    def test_a_tree_without_one_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(MmfError, match=r"version\.py cannot be read"):
            read_version(tmp_path)
        tree(tmp_path, {"mmf/version.py": "version = 1\n"})
        with pytest.raises(MmfError, match="no version"):
            read_version(tmp_path)

    def test_an_unknown_one_is_an_error_that_names_the_known_ones(self) -> None:
        with pytest.raises(MmfError, match=r"0\.9 is unknown.*1\.0\.0rc10 and 1\.0\.0rc12"):
            has_key("0.9", "training.callbacks")
