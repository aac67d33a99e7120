"""An MMF of which there is nothing but what every configuration is made of."""

from __future__ import annotations

from pathlib import Path


def with_defaults(root: Path, version: str = "1.0.0rc10", more: str = "") -> Path:
    """Write its version and its defaults, with ``more`` of them as YAML; return its folder."""
    configs = root / "mmf" / "configs"
    folders = "  cache_dir: c\n  data_dir: d\n  save_dir: s\n  report_dir: r\n"
    for path, text in {
        configs / "defaults.yaml": "env:\n  user_dir: ${env:MMF_USER_DIR,}\n" + folders + more,
        configs / "datasets" / "hateful_memes" / "defaults.yaml": "{dataset_config: {hateful_memes: {}}}",
        root / "mmf" / "version.py": f'__version__ = "{version}"\n',
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
