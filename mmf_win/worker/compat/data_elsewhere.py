"""MMF refuses annotations anywhere but in its own data folder, although its configuration may name others."""

from __future__ import annotations

from mmf_win.worker.compat.cure import BOTH, by_editing
from mmf_win.worker.compat.importing import Edit

_CHECK = "PathManager.exists(test_path)"
_NAMED = "PathManager.exists(os.path.join(config.data_dir, config.annotations.train[0]))"

CURE = by_editing(
    Edit("mmf.datasets.builders.hateful_memes.builder", f"assert {_CHECK}", f"assert {_CHECK} or {_NAMED}"),
    name="data-elsewhere",
    cures="HatefulMemesBuilder.build: wants train.jsonl in its data folder, whatever annotations are named",
    mmf=BOTH,
    library="own memes without the dataset",
)
