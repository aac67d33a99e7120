"""Predict memes with the model in this folder, by Python 3.10, onnxruntime, tokenizers, pillow and numpy.

  python run.py --image cat.png --text "look at this cat"
  python run.py memes.csv -o predictions.csv

A table is a .jsonl or .csv with img (or image), text and optionally id; its paths are relative to it. A model
that reads region features takes no images, and something else must make the features: --features, or a column
of that name, is an .npz with features [boxes, numbers], and as far as model.json names them boxes [boxes, 4]
in pixels (x1, y1, x2, y2) and image_size [2] (height, width).
"""

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnxruntime
    from PIL import Image
    from tokenizers import Tokenizer

    from mmf_win.images import open_image
except ImportError as missing:
    reason = f"{missing}: pip install onnxruntime tokenizers pillow numpy"
    if __name__ != "__main__":
        raise ImportError(reason) from missing
    sys.exit(f"error: {reason}")
except KeyboardInterrupt:
    sys.exit(130)

_MAX_BATCH_PIXELS = (
    2**24
)  # pixels of a batch of images, of which each is as wide and as high as the largest ones


class UnusableInputError(Exception):
    """Input that cannot be used.

    Attributes:
        reason: what is wrong with which file.
    """

    def __init__(self, reason: str, meme: object = None) -> None:
        super().__init__(reason if meme is None else f"meme {meme}: {reason}")
        self.reason = reason


class Model:
    """The model in a folder, and what makes its inputs."""

    def __init__(self, folder: Path) -> None:
        self.metadata = read_file(folder / "model.json", read_metadata)
        self.text, self.inputs = self.metadata["text"], {each["name"] for each in self.metadata["inputs"]}
        self.tokenizer = None
        if self.text:
            self.tokenizer = read_file(folder / "tokenizer.json", lambda at: Tokenizer.from_file(str(at)))
        versions = f"made with onnxruntime {self.metadata['versions']['onnxruntime']}"
        versions += f", this is {onnxruntime.__version__}: "
        self.session = read_file(folder / "model.onnx", create_session, error_prefix=versions)

    def predict(self, rows: list[dict[str, Any]]) -> list[float]:
        """The probability of each row that it is hateful."""
        inputs: dict[str, Any] = {}
        needed = {"img": self.metadata["image"], "text": self.text, "features": self.metadata["features"]}
        for row, name in ((row, name) for row in rows for name, needs in needed.items() if needs):
            if not isinstance(row.get(name), (str, Path)):
                raise UnusableInputError(
                    f"meme {row['id']} has no {name}, which this model needs; --help says more"
                )

        def read_each(name: str, read: Callable[[Path], Any]) -> list[Any]:
            return [read_file(row[name], read, row["id"]) for row in rows]

        if self.metadata["image"]:
            stored = np.array(read_each("img", lambda at: Image.open(at).size))
            if (half := len(rows) // 2) and len(rows) * stored.max(0).prod() > _MAX_BATCH_PIXELS:
                return self.predict(rows[:half]) + self.predict(rows[half:])
            images = read_each("img", lambda at: np.asarray(open_image(at)))
            inputs["size"] = np.array([image.shape[:2] for image in images])
            inputs["image"] = np.zeros((len(rows), *inputs["size"].max(0), 3), np.uint8)
            for image, place in zip(images, inputs["image"], strict=True):
                place[: image.shape[0], : image.shape[1]] = image
        if self.tokenizer is not None:
            most, cls, sep = (self.text[key] for key in ("max_length", "cls", "sep"))
            found = [self.tokenizer.encode(row["text"], add_special_tokens=False).ids for row in rows]
            tokens = [[cls, *ids[: most - 2], sep] for ids in found]
            length = min(most, max(map(len, tokens)) + 1)
            inputs["input_ids"] = np.full((len(rows), length), self.text["pad"])
            inputs["input_mask"] = np.zeros((len(rows), length))
            for number, ids in enumerate(tokens):
                inputs["input_ids"][number, : len(ids)], inputs["input_mask"][number, : len(ids)] = ids, 1
        if self.metadata["features"]:
            files = read_each("features", self.load_padded_features)
            inputs |= {name: np.stack([file[name] for file in files]) for name in files[0]}
        given = {each["name"]: inputs[each["name"]].astype(each["dtype"]) for each in self.metadata["inputs"]}
        return [float(row[1]) for row in self.session.run(["probabilities"], given)[0]]

    def predict_all(
        self, rows: list[dict[str, Any]], batch_size: int, on_progress: Callable[[int], None]
    ) -> tuple[list[float], dict[str, float]]:
        """Return the probabilities of rows, and the p50_ms and p99_ms of their batches.

        Args:
            rows: as :func:`read_table` has them.
            size: how many make a batch.
            tell: called after each batch with the number of rows done.
        """
        probas, times = list[float](), list[float]()
        for start in range(0, len(rows), batch_size):
            began = time.perf_counter()
            probas += self.predict(rows[start : start + batch_size])
            times.append(1000 * (time.perf_counter() - began))
            on_progress(len(probas))
        p50, p99 = np.percentile(times[1:] or times, [50, 99]).round(2).tolist()
        return probas, {"p50_ms": p50, "p99_ms": p99}

    def load_padded_features(self, path: Path) -> dict[str, Any]:
        """The region features in a file as one row of the inputs."""
        file, (most, dim) = np.load(path), (self.metadata["features"][key] for key in ("boxes", "dim"))
        count = min(most, len(file["features"]))
        shapes = {"features": (count, dim), "boxes": (count, 4), "image_size": (2,)}
        row = {"max_features": np.array(count)}
        for name in self.inputs & shapes.keys():
            part = file[name][:most]
            if part.shape != shapes[name] or not np.isfinite(part).all():
                raise ValueError(f"{name} must be {shapes[name]} finite numbers")
            row[name] = np.pad(part, ((0, most - count), (0, 0))) if part.ndim > 1 else part
        return row


def read_file(path: Path, read: Callable[[Path], Any], meme: object = None, error_prefix: str = "") -> Any:
    """Return what ``read`` makes of a file. Raises Unusable where it cannot be read."""
    try:
        return read(path)
    except Exception as error:  # of Pillow, numpy and onnxruntime, of no common class
        raise UnusableInputError(f"{error_prefix}{path}: {error}".partition("\n")[0], meme) from error


def read_metadata(path: Path) -> dict[str, Any]:
    """What a model.json says."""
    about = json.loads(path.read_text(encoding="utf-8"))
    return {key: about[key] for key in ("text", "image", "features", "inputs", "versions")}


def describe_error(error: Exception) -> str:
    """Return what an error says and, unless it is Unusable, its class."""
    return str(error) if isinstance(error, UnusableInputError) else f"{type(error).__name__}: {error}"


def create_session(path: Path) -> onnxruntime.InferenceSession:
    """What runs a model; it is not told the path, which may have any letters."""
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, with paths that lead to the files from here."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() == ".jsonl":
            rows = [json.loads(line) for line in file if line.strip()]
        else:
            header = next(filter(str.strip, file), "")
            mark = max(",;\t", key=header.count)
            names = [name.strip().lower() for name in next(csv.reader([header], delimiter=mark), [])]
            rows = list(csv.DictReader(file, names, delimiter=mark))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or None in row:
            raise ValueError(f"row {number} has more values than there are columns, or none that are named")
        row["id"] = number if row.get("id") in (None, "") else row["id"]
        row["img"] = row.get("img") or row.get("image")
        row |= {key: path.parent / row[key] if row.get(key) else None for key in ("img", "features")}
    if not rows:
        raise ValueError("there are no memes in it")
    return rows


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help=".csv or .jsonl")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--text")
    parser.add_argument("--features", type=Path, help=".npz")
    parser.add_argument("-o", "--output", type=Path, help="where id,proba,label go, in place of stdout")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="its folder, if not this")
    parser.add_argument("--timings", action="store_true", help="tell progress and ms a batch on stderr")
    asked = parser.parse_args()
    of_one = (asked.image, asked.text, asked.features)
    if (asked.table is None) == (of_one == (None, None, None)):
        parser.error("name a table, or one meme")
    if asked.output and not asked.output.absolute().parent.is_dir():
        parser.error(f"{asked.output}: there is no such folder")
    one = {"id": 1, "img": asked.image, "text": asked.text or "", "features": asked.features}
    rows, size = read_file(asked.table, read_table) if asked.table else [one], max(1, asked.batch_size)

    def print_progress(done: int) -> None:
        if len(rows) > size and (asked.timings or sys.stderr.isatty()):
            end = "\n" if done == len(rows) else "\r"
            print(f"{done} of {len(rows)} memes", end=end, file=sys.stderr, flush=True)

    probas, timings = Model(asked.model).predict_all(rows, size, print_progress)
    lines = [(row["id"], repr(p), int(p > 0.5)) for row, p in zip(rows, probas, strict=True)]
    to_file = asked.output and asked.output.open("w", encoding="utf-8", newline="")
    with to_file or nullcontext(sys.stdout) as file:
        csv.writer(file, lineterminator="\n").writerows([("id", "proba", "label"), *lines])
    if asked.timings:
        print(json.dumps(timings), file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(f"error: {describe_error(error)}")
