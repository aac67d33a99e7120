"""MMF is fetched, verified, found and repaired, from tiny sources by the real code."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest

from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest
from mmf_win.integrity.verify import LOCK_NAME, mark_intact, record_hashes
from mmf_win.unpacking.staging import staging_folder
from mmf_win.upstream import sources
from mmf_win.upstream.install import MmfInstall, find_changed_files, find_mmf, install, require_packages, use_checkout
from mmf_win.upstream.sources import MmfSource
from tests.worlds import mmf_sources
from tests.worlds.mmf_sources import COMMIT, TREE, VERSION, File, git_archive, github_archive, write_pypi_wheel
from tests.worlds.tools import is_wine
from tests.worlds.web_server import Fault, WebServer, respond_with

ARCHIVE = git_archive(TREE)
no_pip = pytest.mark.skipif(
    is_wine() and importlib.util.find_spec("pip") is None, reason="this Windows Python has no pip"
)


def _pin(monkeypatch: pytest.MonkeyPatch, source: MmfSource) -> None:
    """Make the tiny source the one that mmfw has under this name."""
    monkeypatch.setattr("mmf_win.upstream.install.SOURCES", (source,))


def _fetch(monkeypatch: pytest.MonkeyPatch) -> MmfInstall:
    with WebServer.serving(mmf_tar_gz=ARCHIVE) as server:
        source = github_archive(server.url)
        _pin(monkeypatch, source)
        return install(source)


class TestGithub:
    def test_commit_is_fetched_and_found(self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = _fetch(monkeypatch)
        assert installed == MmfInstall(mmfw_home / "mmf" / f"github-{COMMIT[:12]}", VERSION, "github", COMMIT)
        assert find_mmf() == installed
        assert find_changed_files(installed) == []
        assert (installed.root / "docs/Привет 你好.md").read_bytes() == TREE["docs/Привет 你好.md"].content
        link = installed.root / "projects/pythia/link.yaml"
        assert not link.is_symlink(), "a link must become a text file on every system"
        assert link.read_bytes() == b"../../mmf/configs/real.yaml"

    def test_intact_copy_is_not_fetched_again(self, mmfw_home: Path) -> None:
        with WebServer.serving(mmf_tar_gz=ARCHIVE) as server:
            install(github_archive(server.url))
            install(github_archive(server.url))
            assert len(server.requests) == 1
            install(github_archive(server.url), force=True)
            assert len(server.requests) == 2

    @pytest.mark.parametrize(
        ("answer", "request_count", "message"),
        [
            (respond_with(404), 1, "the server answered 404"),
            (respond_with(200, ARCHIVE[:99], Content_Length=str(len(ARCHIVE))), 5, "the connection ended after 99 of"),
            (respond_with(200, ARCHIVE[: len(ARCHIVE) // 2], Content_Length=None), 1, "damaged archive"),
            (respond_with(200, b"<html>Log in to the hotel</html>"), 1, "damaged archive"),
            (respond_with(200, git_archive({"../../evil.py": File(b"")})), 1, "cannot be unpacked safely"),
            (respond_with(200, git_archive({"a:b.py": File(b"")})), 1, "cannot be unpacked safely"),
            (respond_with(200, git_archive(dict(TREE) | {"mmf/evil.py": File(b"")})), 1, f"is not commit {COMMIT}"),
            (
                respond_with(200, git_archive(dict(TREE) | {"mmf.txt": File(b"", "program")})),
                1,
                f"is not commit {COMMIT}",
            ),
        ],
        ids=["404", "short", "cut", "no archive", "escape", "colon", "other file", "mode"],
    )
    def test_invalid_download_leaves_no_usable_copy(
        self, mmfw_home: Path, answer: Fault, request_count: int, message: str
    ) -> None:
        with WebServer.serving(mmf_tar_gz=b"") as server:
            server.faults = [answer] * 5
            with pytest.raises(MmfEnvironmentError, match=message) as raised:
                install(github_archive(server.url))
            assert len(server.requests) == request_count
        assert raised.value.hint
        assert [path.name for path in (mmfw_home / "mmf").rglob("*") if path.is_file()] == [LOCK_NAME]
        with pytest.raises(MmfEnvironmentError, match="MMF is not installed"):
            find_mmf()

    def test_damaged_files_are_named_and_repaired(self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = _fetch(monkeypatch)
        (installed.root / "mmf.txt").write_bytes(b"other")
        (installed.root / "mmf/configs/real.yaml").unlink()
        (installed.root / "mmf/stray.py").touch()
        expected = [
            "changed: mmf.txt (5 instead of 70000 bytes)",
            "extra: mmf/stray.py",
            "missing: mmf/configs/real.yaml",
        ]
        assert sorted(find_changed_files(installed) or ()) == expected
        assert find_changed_files(_fetch(monkeypatch)) == []

    def test_change_with_restored_time_is_found_by_full_verification(
        self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        installed = _fetch(monkeypatch)
        changed = installed.root / "mmf.txt"
        changed.write_bytes(b"1" * 70_000)
        os.utime(changed, (0, 0))
        manifest = Manifest.load(installed.root)
        assert manifest is not None
        mark_intact(manifest, ["mmf.txt"])
        assert find_changed_files(installed) == []
        assert find_changed_files(installed, full=True) == ["changed: mmf.txt (different content)"]

    def test_changed_manifest_is_noticed(self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = _fetch(monkeypatch)
        sums = installed.root / MANIFEST_NAME
        (installed.root / "mmf.txt").write_bytes(b"other")
        record_hashes(installed.root, TREE)
        assert find_changed_files(installed) == [f"changed: {MANIFEST_NAME}"]
        sums.write_bytes(b"?")
        assert find_changed_files(installed) == [f"{sums}:1: not in sha256sum format"]
        sums.unlink()
        assert find_changed_files(installed) == [f"missing: {MANIFEST_NAME}"]
        assert find_changed_files(_fetch(monkeypatch)) == []

    def test_failed_update_keeps_the_old_copy(self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = _fetch(monkeypatch)
        with WebServer.serving() as server, pytest.raises(MmfEnvironmentError):
            install(github_archive(server.url), force=True)
        assert find_mmf() == installed
        assert find_changed_files(installed) == []
        real = Path.replace

        def refuse_the_new_one(path: Path, target: Path) -> Path:
            if path.name == "new" and target == installed.root:
                raise PermissionError(13, "in use", str(path))
            return real(path, target)

        monkeypatch.setattr(Path, "replace", refuse_the_new_one)
        monkeypatch.setattr("mmf_win.files.RETRY_PAUSE_SECONDS", 0.0)
        with WebServer.serving(mmf_tar_gz=ARCHIVE) as server, pytest.raises(PermissionError):
            install(github_archive(server.url), force=True)
        assert find_mmf() == installed
        assert find_changed_files(installed) == []
        assert not staging_folder(mmfw_home / "mmf").exists()

    def test_fake_read_only_disk_is_reported_before_fetching(
        self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse_to_write(**_: object) -> NoReturn:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr("tempfile.TemporaryFile", refuse_to_write)
        with WebServer.serving(mmf_tar_gz=ARCHIVE) as server:
            with pytest.raises(MmfEnvironmentError, match=r"not writable \(Read-only") as raised:
                install(github_archive(server.url))
            assert server.requests == []
        assert "MMFW_HOME" in (raised.value.hint or "")

    def test_killed_setup_leaves_no_usable_copy(self, mmfw_home: Path) -> None:
        with WebServer.serving(mmf_tar_gz=ARCHIVE) as server:
            # Dies at the worst time: everything is fetched and nothing is verified.
            script = (
                "import os, dataclasses\nfrom mmf_win.upstream.install import install\n"
                "from tests.worlds.mmf_sources import github_archive\n"
                "class Dying(type(github_archive(''))):\n"
                "    def fetch(self, staging): super().fetch(staging); os._exit(9)\n"
                f"install(Dying(**dataclasses.asdict(github_archive({server.url!r}))))\n"
            )
            died = subprocess.run(
                [sys.executable, "-c", script], cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL
            )
            assert died.returncode == 9
            assert staging_folder(mmfw_home / "mmf").joinpath("new", "mmf", "version.py").is_file()
            with pytest.raises(MmfEnvironmentError, match="MMF is not installed"):
                find_mmf()
            install(github_archive(server.url))
        assert find_mmf().version == VERSION
        assert not staging_folder(mmfw_home / "mmf").exists()

    def test_environment_can_be_moved(self, mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _fetch(monkeypatch)
        moved = mmfw_home.rename(mmfw_home.with_name("moved"))
        monkeypatch.setenv("MMFW_HOME", str(moved))
        assert find_mmf().root.is_relative_to(moved)
        assert find_changed_files(find_mmf()) == []


@no_pip
class TestPypi:
    @pytest.fixture
    def index(self, user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a folder of wheels, the only place where pip looks."""
        folder = user_dir / "wheels"
        folder.mkdir()
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
        return folder

    def test_linux_wheel_is_fetched_and_repaired_on_every_system(
        self, mmfw_home: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = write_pypi_wheel(index)
        _pin(monkeypatch, source)
        installed = install(source)
        assert installed == MmfInstall(mmfw_home / "mmf" / f"pypi-{VERSION}", VERSION, "pypi", None)
        assert find_mmf() == installed
        assert find_changed_files(installed) == []
        assert (installed.root / "mmf/configs/real.yaml").is_file()
        (installed.root / "mmf_cli/run.py").write_bytes(b"")
        assert find_changed_files(installed) == ["changed: mmf_cli/run.py (0 instead of 15 bytes)"]
        assert find_changed_files(install(source)) == []

    def test_wheel_is_transferred_as_the_offline_guide_says(
        self, mmfw_home: Path, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = write_pypi_wheel(index)
        _pin(monkeypatch, source)
        guide = Path(__file__).parents[2].joinpath("docs", "offline.md").read_text(encoding="utf-8")
        [line] = re.findall(r"^ *pip (download .* mmf==)\S+$", guide, re.MULTILINE)
        carried = mmfw_home.parent / "carried"
        carried.mkdir()
        arguments = f"{line}{VERSION}".split()
        subprocess.run([sys.executable, "-m", "pip", *arguments], cwd=carried, check=True)
        monkeypatch.setenv("PIP_FIND_LINKS", (carried / "wheels").as_uri())
        next(index.iterdir()).unlink()
        assert install(source).version == VERSION

    @pytest.mark.parametrize("damaged", [False, True])
    def test_different_wheel_with_the_same_name_is_refused(self, mmfw_home: Path, index: Path, damaged: bool) -> None:
        source = write_pypi_wheel(index)
        with zipfile.ZipFile(next(index.iterdir()), "a") as wheel:
            wheel.writestr("mmf/evil.py", "evil")
        if damaged:
            content = next(index.iterdir()).read_bytes()
            next(index.iterdir()).write_bytes(content.replace(b"evil.pyevil", b"evil.pyEVIL"))
        with pytest.raises(MmfEnvironmentError, match="not the wheel published on PyPI"):
            install(source)
        with pytest.raises(MmfEnvironmentError, match="MMF is not installed"):
            find_mmf()

    def test_output_of_failed_pip_is_shown(self, mmfw_home: Path, index: Path) -> None:
        source = write_pypi_wheel(index)
        next(index.iterdir()).unlink()
        with pytest.raises(MmfEnvironmentError, match="No matching distribution found for mmf") as raised:
            install(source)
        assert raised.value.hint


@pytest.mark.skipif(is_wine(), reason="Windows under Wine cannot start a venv")
def test_python_without_pip_gets_a_hint(mmfw_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = mmfw_home.parent / "bare"
    venv.create(bare, with_pip=False)
    programs = sysconfig.get_path("scripts", vars={"base": str(bare)})
    monkeypatch.setattr(sys, "executable", str(Path(programs, Path(sys.executable).name)))
    with pytest.raises(MmfEnvironmentError, match="has no pip") as raised:
        install(sources.PYPI)
    assert "ensurepip" in (raised.value.hint or "")


class TestCheckout:
    @pytest.fixture
    def checkout(self, user_dir: Path) -> Path:
        return mmf_sources.write_checkout(user_dir / "my mmf")

    def test_checkout_is_used_in_place_and_may_be_edited(
        self, mmfw_home: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(checkout.parent)
        before = sorted(checkout.rglob("*"))
        use_checkout(Path(checkout.name))
        assert find_mmf() == MmfInstall(checkout.resolve(), VERSION, "path")
        assert sorted(checkout.rglob("*")) == before
        assert find_changed_files(find_mmf()) is None

    def test_folder_that_is_not_a_checkout_is_refused(self, mmfw_home: Path, checkout: Path) -> None:
        for folder in ("mmf", "nowhere"):
            with pytest.raises(UsageError, match="not a checkout of MMF"):
                use_checkout(checkout / folder)

    def test_moved_checkout_is_reported(self, mmfw_home: Path, checkout: Path) -> None:
        use_checkout(checkout)
        checkout.rename(checkout.with_name("elsewhere"))
        with pytest.raises(MmfEnvironmentError, match="is incomplete") as raised:
            find_mmf()
        assert str(checkout.resolve()) in (raised.value.hint or "")


def test_importable_mmf_is_found_without_importing_it(
    mmfw_home: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mmf_sources.write_checkout(user_dir)
    (user_dir / "mmf/__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(user_dir), *sys.path])
    assert find_mmf() == MmfInstall(user_dir, VERSION, "environment")


def test_missing_packages_are_named_with_a_hint(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (user_dir / "PIL").mkdir()
    (user_dir / "PIL/__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(user_dir), *sys.path])
    require_packages("pillow", "click")
    with pytest.raises(MmfEnvironmentError, match=r": no-such, no_such$") as raised:
        require_packages("click", "no-such", "no_such")
    assert "[train]" in (raised.value.hint or "")


def test_unreadable_selection_has_a_hint(mmfw_home: Path) -> None:
    (mmfw_home / "mmf").mkdir(parents=True)
    (mmfw_home / "mmf/installed.json").write_text("{", encoding="utf-8")
    with pytest.raises(MmfEnvironmentError, match="cannot be read") as raised:
        find_mmf()
    assert "mmfw setup --mmf pypi" in (raised.value.hint or "")


@pytest.mark.torch
def test_installed_mmf_is_intact() -> None:
    assert not find_changed_files(find_mmf()), "the result is None for a checkout"
