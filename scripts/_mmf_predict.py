"""MMF's ``mmf_predict`` on a run's checkpoint, with only the required patches of mmfw.

python scripts/_mmf_predict.py RUN SPLIT REPORT_DIR [KEY=VALUE ...]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from mmf_win import compat
from mmf_win.files import write_json
from mmf_win.paths import presets_dir
from mmf_win.runs.folder import Run
from mmf_win.upstream.config import merge_settings
from mmf_win.upstream.default_settings import ANNOTATIONS_TEMPLATE
from mmf_win.upstream.install import require_mmf
from mmf_win.upstream.versions import config_path


def main(run: Run, split: str, report_dir: Path, overrides: list[str]) -> None:
    """Predict with MMF's code and defaults."""
    request = run.request()
    mmf = require_mmf()
    with tempfile.TemporaryDirectory(dir=report_dir) as folder:
        # MMF reads best.ckpt from its save_dir and also writes to this folder.
        save = Path(folder, "save")
        save.mkdir()
        os.link(run.checkpoints / "best.ckpt", save / "best.ckpt")
        shutil.copyfile(run.checkpoints / "best.ckpt", save / "current.ckpt")
        os.environ |= {"MMF_DATA_DIR": request.data_dir, "MMF_REPORT_DIR": str(report_dir)}
        if request.offline:
            nothing = str(presets_dir() / "zoo" / "nothing.yaml")
            os.environ |= {"MMF_DATASET_ZOO": nothing, "HF_HUB_OFFLINE": "1"}
        includes = [str(config_path(mmf.root, request.config))] if request.config else []
        config = Path(folder, "config.yaml")
        # JSON is valid YAML.
        splits = {**request.splits, "test": split}
        files = {slot: [ANNOTATIONS_TEMPLATE.format(stem)] for slot, stem in splits.items()}
        dataset = {"hateful_memes": {"annotations": files}}
        settings = merge_settings(request.mmf_settings, {"dataset_config": dataset})
        write_json(config, {"includes": includes, **settings})
        sys.argv = [
            "mmf_predict",
            f"config={config}",
            f"model={request.model}",
            "dataset=hateful_memes",
            "run_type=test",
            "evaluation.predict_file_format=csv",
            "checkpoint.resume=True",
            "checkpoint.resume_best=True",
            f"env.save_dir={save}",
            *overrides,
        ]
        compat.install(mmf.root, compat.REQUIRED_PATCHES)
        from mmf_cli.predict import predict

        predict()


if __name__ == "__main__":
    main(Run(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
