from pathlib import Path

from mmf_win.paths import Places


def test_the_folders_are_resolved_as_mmf_resolves_them(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert Places.resolve(environ={"TORCH_HOME": home}).data_dir == tmp_path / "mmf" / "data"
    assert Places.resolve(environ={"XDG_CACHE_HOME": home}).cache_dir == tmp_path / "torch" / "mmf"
    assert Places.resolve(environ={"MMF_CACHE_DIR": home}).data_dir == tmp_path / "data"
    assert Places.resolve(environ={"MMF_CACHE_DIR": "x", "MMF_DATA_DIR": home}).data_dir == tmp_path
    assert Places.resolve(environ={"MMF_SAVE_DIR": home}).save_dir == tmp_path
    assert Places.resolve(environ={}).save_dir == Path.cwd() / "save"


def test_an_option_wins_over_the_environment(tmp_path: Path) -> None:
    places = Places.resolve(tmp_path / "data", tmp_path / "save", {"MMF_DATA_DIR": "x", "MMF_SAVE_DIR": "y"})
    assert (places.data_dir, places.save_dir) == (tmp_path / "data", tmp_path / "save")
