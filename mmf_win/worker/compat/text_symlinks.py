"""git writes a symlink as a text file where the system has none, and MMF reads that as a configuration."""

from __future__ import annotations

from pathlib import Path

from mmf_win.upstream.versions import follow_text_links
from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit


def follow(path: str) -> str:
    """The file that ``path`` stands for, so that its includes are looked for beside the real one."""
    real = follow_text_links(Path(path))
    return path if real == Path(path) else str(real)  # MMF also speaks of URLs, which are no paths


_NAMES = {"follow": follow}

CURE = by_editing(
    Edit(
        "mmf.utils.configuration",
        "abs_f = get_absolute_path(f)",
        "abs_f = follow(get_absolute_path(f))",
        _NAMES,
    ),
    Edit(
        "mmf.utils.configuration",
        "relative = os.path.abspath(os.path.join(get_mmf_root(), f))",
        "relative = follow(os.path.abspath(os.path.join(get_mmf_root(), f)))",
        _NAMES,
    ),
    Edit(
        "mmf.utils.configuration",
        "include = os.path.join(mmf_root_dir, include)",
        "include = follow(os.path.join(mmf_root_dir, include))",
        _NAMES,
    ),
    name="text-symlinks",
    cures="load_yaml: fifteen configurations of Hateful Memes are symlinks, or text where there are none",
    mmf=BOTH,
    library="Windows",
)
