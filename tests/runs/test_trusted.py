"""Code that a preset names is run only once the user trusts its folder; needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.commands.hints import hint_for
from mmf_win.errors import UntrustedCode
from mmf_win.runs import trusted


@pytest.mark.usefixtures("home")
def test_code_that_a_preset_names_is_trusted_once_and_what_the_user_names_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, other = ({"env": {"user_dir": str(tmp_path / name)}} for name in ("code", "other"))
    with pytest.raises(UntrustedCode) as caught:
        trusted.require_trusted(config, [], trust=False)
    assert str(tmp_path / "code") in str(caught.value) and "--trust" in str(hint_for(caught.value))
    trusted.require_trusted(config, [], trust=True)
    trusted.require_trusted(config, [], trust=False)
    with pytest.raises(UntrustedCode):
        trusted.require_trusted(other, [], trust=False)
    trusted.require_trusted(other, [f"env.user_dir={tmp_path / 'other'}"], trust=False)
    monkeypatch.setenv("MMF_USER_DIR", str(tmp_path / "other"))
    trusted.require_trusted(other, [], trust=False)
    trusted.file().write_text("cut off [", encoding="utf-8")
    with pytest.raises(UntrustedCode):
        trusted.require_trusted(config, [], trust=False)
