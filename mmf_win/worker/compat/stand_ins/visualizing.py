"""For ``mmf.utils.features.visualizing_image``, which draws boxes with matplotlib, never in a run."""

from __future__ import annotations

from mmf_win.errors import MmfError


class SingleImageViz:
    """Refuses to be made."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise MmfError("Drawing features needs matplotlib.", hint="pip install matplotlib")
