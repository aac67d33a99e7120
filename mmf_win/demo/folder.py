"""What ``mmfw demo`` starts from: an encrypted archive, region features, and a tiny BERT or CLIP."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import DataError, StoppedByUserError, UsageError
from mmf_win.paths import ChildPath, module_command

#: Of the archive.
PASSWORD = "demo"
#: The demo's models → their presets.
DEMO_PRESETS = {"vilbert": "demo", "clip": "demo_clip"}


@dataclass(frozen=True)
class DemoFolder:
    """A demo's folder, and the names in it."""

    path: Path
    #: Says that the folder is a demo's; written first.
    marker = ChildPath(".mmfw-demo")
    #: The dataset as one gets it, encrypted with :data:`PASSWORD`.
    archive = ChildPath("hateful_memes.zip")
    #: The region features as MMF downloads them.
    features = ChildPath("features.tar.gz")
    data_dir = ChildPath("data")
    #: The BERT that the preset ``demo`` starts from.
    bert = ChildPath("bert-demo", parent="data_dir")
    #: The CLIP that the preset ``demo_clip`` starts from.
    clip = ChildPath("clip-demo", parent="data_dir")
    save_dir = ChildPath("save")

    def claim(self) -> None:
        """Make the folder, or take an earlier demo's. Raises UsageError where something else is in it."""
        if not self.marker.is_file() and self.path.exists() and any(self.path.iterdir()):
            message = f"{self.path}: not empty, and not the folder of a demo"
            raise UsageError(message, hint="name a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self.marker.touch()

    def generate_files(self, seed: int, model: str) -> None:
        """Make what a model needs and is not there yet, in a child: it takes what the parent must not import.

        Raises DataError where something could not be made, why the child has said, and Interrupted.
        """
        command = module_command("mmf_win.demo.generate", str(self.path), str(seed), model)
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        if code == StoppedByUserError.exit_code:
            raise StoppedByUserError("interrupted")
        if code:
            raise DataError(f"{self.path}: the demo's files could not be made", hint="see what is said above")
