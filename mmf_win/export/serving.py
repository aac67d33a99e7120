"""``python -m mmf_win.export.serving FOLDER REQUEST``: an exported model that stays warm and answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mmf_win.errors import UnreadableImage
from mmf_win.export.run import Model
from mmf_win.protocol import Attempt, Exit
from mmf_win.protocol.serving import answer


def main(folder: Path, asked: Attempt) -> None:
    """Load the model, and answer until the parent is gone."""
    try:
        model = Model(folder)
    except SystemExit as end:
        Exit("mmf", str(end.code).removeprefix("error: ")).save(asked.attempt.exit)
        raise

    def predict(rows: list[dict[str, Any]]) -> list[float]:
        try:
            return model.predict([{**row, "img": Path(row["img"])} for row in rows])
        except SystemExit as end:
            raise UnreadableImage(str(end.code).removeprefix(f"error: meme {rows[0]['id']}: ")) from None

    answer(asked, predict)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Attempt.load(Path(sys.argv[2])))
