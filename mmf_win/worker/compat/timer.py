"""Names of reports, logs and TensorBoard folders hold colons, which Windows does not allow."""

from __future__ import annotations

from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit

CURE = by_editing(
    Edit("mmf.utils.timer", "return time.strftime(format)", 'return time.strftime(format).replace(":", "-")'),
    name="timer",
    cures="Timer.get_time_hhmmss: the stamp in names of reports, logs and TensorBoard folders holds colons",
    mmf=BOTH,
    library="Windows",
)
