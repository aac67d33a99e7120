"""All runs as a table for a notebook."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from mmf_win.errors import MmfError
from mmf_win.paths import Places
from mmf_win.runs.history import Summary, summaries

if TYPE_CHECKING:
    import pandas


def frame(save_dir: Path | str | None = None) -> pandas.DataFrame:
    """One row a run, the newest first; the columns are those of :class:`~mmf_win.runs.history.Summary`.

    ``started`` is a time in UTC.

    Args:
        save_dir: where runs are kept; None for ``MMF_SAVE_DIR``, else ``./save``.

    Raises:
        MmfError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MmfError("a table for notebooks needs pandas", hint="pip install pandas") from None
    save = Places.resolve(None, Path(save_dir) if save_dir is not None else None).save_dir
    columns = [field.name for field in fields(Summary)]
    table = pandas.DataFrame([asdict(summary) for summary in summaries(save)], columns=columns)
    table["started"] = pandas.to_datetime(table["started"], unit="s", utc=True)
    return table
