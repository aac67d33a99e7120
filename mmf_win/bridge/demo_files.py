"""What ``mmfw demo`` starts from: an encrypted archive, region features and a tiny BERT.

::

    <folder>/
      mmfw-demo.json       says that the folder is a demo's
      hateful_memes.zip    the dataset, as one gets it
      features.tar.gz      its region features, as MMF downloads them
      data/                MMF's data folder
        bert-demo/         the BERT that the preset ``demo`` starts from
      save/                the runs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mmf_win import __version__
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.bridge.region_features import write_archive
from mmf_win.bridge.tiny_bert import write_bert
from mmf_win.console import Progress, say
from mmf_win.dataset import synthetic
from mmf_win.errors import UsageError
from mmf_win.files import read_json, write_json

PASSWORD = "demo"
"""Of the archive."""

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class DemoFolder:
    """A demo's folder, and the names in it."""

    path: Path

    @property
    def marker(self) -> Path:
        """Says that the folder is a demo's; written first."""
        return self.path / "mmfw-demo.json"

    @property
    def archive(self) -> Path:
        """The dataset as one gets it, encrypted with :data:`PASSWORD`."""
        return self.path / "hateful_memes.zip"

    @property
    def features(self) -> Path:
        """The region features as MMF downloads them."""
        return self.path / "features.tar.gz"

    @property
    def data_dir(self) -> Path:
        """MMF's data folder."""
        return self.path / "data"

    @property
    def bert(self) -> Path:
        """The BERT that the preset ``demo`` starts from."""
        return self.data_dir / "bert-demo"

    @property
    def save_dir(self) -> Path:
        """Where the runs are kept."""
        return self.path / "save"

    def claim(self) -> None:
        """Make the folder, or go on with one that an earlier demo made.

        Raises:
            UsageError: there is something else in it, or another version of mmfw made it, whose BERT need
                not fit today's preset.
        """
        if self.marker.is_file():
            maker = read_json(self.marker)["mmfw"]
            if maker != __version__:
                raise UsageError(f"{self.path}: made by the demo of mmfw {maker}", hint="name a new folder")
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise UsageError(
                f"{self.path}: not empty, and not the folder of a demo", hint="name a new folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.marker, {"mmfw": __version__})

    def fill(self, seed: int) -> None:
        """Make what is not there yet.

        Args:
            seed: of everything random.
        """
        splits = synthetic.make(seed)
        memes = [meme for split in splits.values() for meme in split]
        if not self.archive.exists():
            say(f"making a synthetic set of {len(memes)} encrypted memes in {self.path} …")
            members = synthetic.archive_members(splits)
            files = len(memes) + len(splits)
            write_encrypted_zip(self.archive, _shown("drawing and encrypting", files, members), PASSWORD)
        if not self.features.exists():
            images = ((meme.stem, meme.png) for meme in memes)
            write_archive(self.features, _shown("describing regions", len(memes), images))
        if not self.bert.exists():
            write_bert(self.bert, synthetic.vocabulary(), seed)


def _shown(title: str, total: int, items: Iterable[_Item]) -> Iterator[_Item]:
    with Progress(title, total, "image") as progress:
        for item in items:
            yield item
            progress.advance(1)
