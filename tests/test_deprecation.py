"""Deprecated names of documented classes and functions."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mmf_win.archives import open_archive
from mmf_win.deprecation import deprecated_aliases
from mmf_win.errors import RunNotFoundError


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("mmf_win.errors", "MmfError", "MmfEnvironmentError"),
        ("mmf_win.errors", "NoRun", "RunNotFoundError"),
        ("mmf_win.errors", "UnreadableImage", "UnreadableImageError"),
        ("mmf_win.archives", "Ask", "PasswordCallback"),
        ("mmf_win.archives", "Extracted", "ExtractedFile"),
        ("mmf_win.runs", "events", "events_dataframe"),
        ("mmf_win.runs", "find", "find_run"),
        ("mmf_win.runs", "frame", "runs_dataframe"),
        ("mmf_win.sweeps", "frame", "sweep_dataframe"),
    ],
)
def test_old_name_is_an_alias_with_a_warning_that_names_both(module: str, old: str, new: str) -> None:
    loaded: Any = import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{old} is deprecated, use {module}\.{new}$") as warnings:
        value = getattr(loaded, old)
    assert value is getattr(loaded, new)
    assert warnings[0].filename == __file__
    assert old not in getattr(loaded, "__all__", ())


def test_import_of_an_old_name_still_works() -> None:
    code = "from mmf_win.errors import NoRun, UnreadableImage\nfrom mmf_win.runs import find, frame"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert "mmf_win.errors.NoRun is deprecated, use mmf_win.errors.RunNotFoundError" in result.stderr
    assert "mmf_win.runs.frame is deprecated, use mmf_win.runs.runs_dataframe" in result.stderr


def test_error_is_caught_by_its_old_name() -> None:
    errors: Any = import_module("mmf_win.errors")
    with pytest.warns(DeprecationWarning), pytest.raises(errors.NoRun):
        raise RunNotFoundError("there is no run")


def test_old_keyword_of_open_archive_still_works(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.warns(DeprecationWarning, match="use list_members"):
        open_archive(path, listed=False)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'mmf_win\.runs' has no attribute 'finds'$"):
        deprecated_aliases("mmf_win.runs", {"find": "find_run"})("finds")
