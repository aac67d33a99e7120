"""Makes what ``mmfw demo`` starts from; run as ``python -m mmf_win.demo.make FOLDER SEED``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.console import Progress, log_shown
from mmf_win.demo import synthetic
from mmf_win.demo.folder import PASSWORD, DemoFolder
from mmf_win.demo.region_features import write_archive
from mmf_win.errors import DataError, Interrupted
from mmf_win.worker.tiny_bert import write_bert

_log = logging.getLogger("mmf_win.demo.make")  # run as a program, it is __main__

BERT = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
}
"""The sizes of the demo's BERT, which its preset repeats."""


def main(path: Path, seed: int) -> int:
    """Make what is not there yet and return the exit code; what the system refuses is said in a line."""
    with log_shown():
        try:
            _fill(DemoFolder(path), seed)
        except KeyboardInterrupt:
            return Interrupted.exit_code
        except OSError as error:
            _log.info("%s", error)
            return DataError.exit_code
    return 0


def _fill(folder: DemoFolder, seed: int) -> None:
    """Make the archive, the features and the BERT, unless they are there: each complete or not at all."""
    splits = synthetic.make(seed)
    memes = [meme for split in splits.values() for meme in split]
    if not folder.archive.exists():
        _log.info("making a synthetic set of %d encrypted memes in %s …", len(memes), folder.path)
        count = len(memes) + len(splits) + 1
        members = _shown("drawing and encrypting", count, synthetic.archive_members(splits))
        write_encrypted_zip(folder.archive, members, PASSWORD)
    if not folder.features.exists():
        images = ((meme.stem, meme.png) for meme in memes)
        write_archive(folder.features, _shown("describing regions", len(memes), images))
    if not (folder.bert / "vocab.txt").exists():
        words = sorted({word for meme in memes for word in meme.text.split()})
        write_bert(folder.bert, words, seed, **BERT)


def _shown(title: str, total: int, items: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    with Progress(title, total, "image") as progress:
        for item in items:
            yield item
            progress.advance(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
