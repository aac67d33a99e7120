"""rc10 trains with autograd's anomaly detection always on, which makes it slow."""

from __future__ import annotations

import sys

from mmf_win.worker.compat.cure import RC10, by_editing
from mmf_win.worker.compat.importing import Edit

wanted = False
"""Whether training runs with anomaly detection; read when it starts."""

CURE = by_editing(
    Edit(
        "mmf.trainers.base_trainer",
        "torch.autograd.set_detect_anomaly(True)",
        "torch.autograd.set_detect_anomaly(anomaly.wanted)",
        {"anomaly": sys.modules[__name__]},
    ),
    name="anomaly",
    cures="BaseTrainer.train: autograd's anomaly detection is always on, which is slow",
    mmf=RC10,
    library="torch",
)
