"""rc10 imports demjson, which no longer builds."""

from __future__ import annotations

from mmf_win.worker.compat.cure import RC10, by_editing, missing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit("mmf.utils.configuration", "import demjson", "from mmf_win.worker.compat.stand_ins import demjson"),
    name="demjson",
    cures="mmf.utils.configuration: imports demjson, for the option config_override alone",
    mmf=RC10,
    library="demjson not installed",
    when=missing("demjson"),
)
