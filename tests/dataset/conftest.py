"""What the tests of the dataset share."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.paths import Places
from tests.worlds.memes import encrypted_zip, memes


@pytest.fixture
def places(user_dir: Path) -> Places:
    """Folders of a user, none of which is there yet."""
    return Places.resolve(user_dir / "data dir", user_dir / "save", environ={})


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """The second phase in an encrypted zip."""
    return encrypted_zip(user_dir / "hateful memes 恶意.zip", memes())
