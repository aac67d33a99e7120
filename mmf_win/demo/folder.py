"""Files of ``mmfw demo``: an encrypted archive, region features, and a tiny BERT or CLIP."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from mmf_win.errors import DataError, StoppedByUserError, UsageError
from mmf_win.paths import ChildPath, module_command

#: Password of the archive.
PASSWORD = "demo"
#: Model of the demo → preset.
DEMO_PRESETS = {"vilbert": "demo", "clip": "demo_clip"}


@dataclass(frozen=True)
class DemoFolder:
    """Folder of a demo, and the paths in it."""

    path: Path
    #: Marks the folder as a demo; written first.
    marker = ChildPath(".mmfw-demo")
    #: The dataset in the form of the release, encrypted with :data:`PASSWORD`.
    archive = ChildPath("hateful_memes.zip")
    #: Region features in the form of MMF's download.
    features = ChildPath("features.tar.gz")
    data_dir = ChildPath("data")
    #: BERT of the preset ``demo``.
    bert = ChildPath("bert-demo", parent="data_dir")
    #: CLIP of the preset ``demo_clip``.
    clip = ChildPath("clip-demo", parent="data_dir")
    save_dir = ChildPath("save")

    def claim(self) -> None:
        """Create the folder, or accept that of an earlier demo.

        Raises:
            UsageError: The folder contains anything else.
        """
        if not self.marker.is_file() and self.path.exists() and any(self.path.iterdir()):
            message = f"{self.path}: not empty and not a demo folder"
            raise UsageError(message, hint="choose a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self.marker.touch()

    def generate_files(self, seed: int, model: str) -> None:
        """Generate the missing files of a model in a child process, which imports what this one must not.

        Raises:
            StoppedByUserError: The user pressed Ctrl+C.
            DataError: A file could not be generated; the child has printed the reason.
        """
        command = module_command("mmf_win.demo.generate", str(self.path), str(seed), model)
        exit_code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        if exit_code == StoppedByUserError.exit_code:
            raise StoppedByUserError("interrupted")
        if exit_code:
            raise DataError(f"{self.path}: cannot create the demo's files", hint="see the messages above")
