"""Patches for what Python 3.10 removed, and for what Windows does not allow."""

from __future__ import annotations

from pathlib import Path

from mmf_win.upstream.versions import follow_text_links
from mmf_win.worker.compat.patch import RC10, Edit, Patch

_CONFIGURATION = "mmf.utils.configuration"


def follow(path: str) -> str:
    """The file that ``path`` refers to, so that its includes are looked for beside the real one."""
    real = follow_text_links(Path(path))
    return path if real == Path(path) else str(real)  # MMF also passes URLs, which are no paths


PATCHES = (
    Patch(
        name="logger-mapping",
        problem="Logger.log_progress: collections.Mapping moved to collections.abc",
        mmf=RC10,
        library="Python >= 3.10",
        edits=(Edit("mmf.utils.logger", "collections.Mapping", "collections.abc.Mapping"),),
    ),
    Patch(
        name="timer",
        problem="Timer.get_time_hhmmss: names of reports, logs and TensorBoard folders have colons",
        library="Windows",
        edits=(
            Edit(
                "mmf.utils.timer",
                "return time.strftime(format)",
                'return time.strftime(format).replace(":", "-")',
            ),
        ),
    ),
    Patch(
        name="csv-report",
        problem="TestReporter.csv_dump: opened without newline='', so Windows doubles the line ends",
        library="Windows",
        edits=(
            Edit(
                "mmf.common.test_reporter",
                'PathManager.open(filepath, "w")',
                'open(filepath, "w", encoding="utf-8", newline="")',
            ),
        ),
    ),
    Patch(
        name="text-symlinks",
        problem="load_yaml: fifteen configurations of Hateful Memes are symlinks, or text where git has none",
        library="Windows",
        edits=tuple(
            Edit(_CONFIGURATION, f"{name} = {path}", f"{name} = follow({path})", {"follow": follow})
            for name, path in (
                ("abs_f", "get_absolute_path(f)"),
                ("relative", "os.path.abspath(os.path.join(get_mmf_root(), f))"),
                ("include", "os.path.join(mmf_root_dir, include)"),
            )
        ),
    ),
)
