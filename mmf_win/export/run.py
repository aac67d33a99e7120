"""Predict memes with the exported model in this folder.

Requires Python 3.10 or later, onnxruntime, tokenizers, pillow and numpy.

  python run.py --image cat.png --text "look at this cat"
  python run.py memes.csv -o predictions.csv

A table is a .jsonl or .csv file with the columns img (or image), text and optionally id; paths in it are
relative to the table. A model that needs region features takes no images. Its features must be created by
another program, as an .npz file per meme (--features, or a column of that name) with features [boxes,
numbers] and, if model.json names them, boxes [boxes, 4] in pixels (x1, y1, x2, y2) and image_size [2]
(height, width).
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

# Pixels of a batch, in which each image is padded to the largest width and height.
_MAX_BATCH_PIXELS = 2**24


class UnusableInputError(Exception):
    """Input that cannot be used.

    Attributes:
        reason: Problem and file, without the ID of the meme.
    """

    def __init__(self, reason: str, meme: object = None) -> None:
        super().__init__(reason if meme is None else f"meme {meme}: {reason}")
        self.reason = reason


class Model:
    """The model in a folder, with the code that prepares its inputs."""

    def __init__(self, folder: Path) -> None:
        self.metadata = read_file(folder / "model.json", read_metadata)
        self.text, self.inputs = self.metadata["text"], {tensor["name"] for tensor in self.metadata["inputs"]}
        self.tokenizer = None
        if self.text:
            self.tokenizer = read_file(folder / "tokenizer.json", lambda path: Tokenizer.from_file(str(path)))
        versions = f"exported with onnxruntime {self.metadata['versions']['onnxruntime']}"
        versions += f", running {onnxruntime.__version__}: "
        self.session = read_file(folder / "model.onnx", create_session, error_prefix=versions)

    def predict(self, rows: list[dict[str, Any]]) -> list[float]:
        """Return the probability that each row is hateful.

        Raises:
            UnusableInputError: A row lacks an input, or a file of it cannot be read.
        """
        inputs: dict[str, Any] = {}
        needed = {"img": self.metadata["image"], "text": self.text, "features": self.metadata["features"]}
        for row, name in ((row, name) for row in rows for name, is_required in needed.items() if is_required):
            if not isinstance(row.get(name), (str, Path)):
                raise UnusableInputError(f"meme {row['id']} has no {name}, which this model requires (see --help)")

        def read_each(name: str, read: Callable[[Path], Any]) -> list[Any]:
            return [read_file(row[name], read, row["id"]) for row in rows]

        if self.metadata["image"]:
            sizes = np.array(read_each("img", lambda path: Image.open(path).size))
            if (half := len(rows) // 2) and len(rows) * sizes.max(0).prod() > _MAX_BATCH_PIXELS:
                return self.predict(rows[:half]) + self.predict(rows[half:])
            images = read_each("img", lambda path: np.asarray(open_image(path)))
            inputs["size"] = np.array([image.shape[:2] for image in images])
            inputs["image"] = np.zeros((len(rows), *inputs["size"].max(0), 3), np.uint8)
            for image, padded in zip(images, inputs["image"], strict=True):
                padded[: image.shape[0], : image.shape[1]] = image
        if self.tokenizer is not None:
            max_length, cls, sep = (self.text[key] for key in ("max_length", "cls", "sep"))
            token_ids = [self.tokenizer.encode(row["text"], add_special_tokens=False).ids for row in rows]
            tokens = [[cls, *ids[: max_length - 2], sep] for ids in token_ids]
            length = min(max_length, max(map(len, tokens)) + 1)
            inputs["input_ids"] = np.full((len(rows), length), self.text["pad"])
            inputs["input_mask"] = np.zeros((len(rows), length))
            for number, ids in enumerate(tokens):
                inputs["input_ids"][number, : len(ids)], inputs["input_mask"][number, : len(ids)] = ids, 1
        if self.metadata["features"]:
            files = read_each("features", self.load_padded_features)
            inputs |= {name: np.stack([file[name] for file in files]) for name in files[0]}
        feeds = {each["name"]: inputs[each["name"]].astype(each["dtype"]) for each in self.metadata["inputs"]}
        return [float(row[1]) for row in self.session.run(["probabilities"], feeds)[0]]

    def predict_all(
        self, rows: list[dict[str, Any]], batch_size: int, on_progress: Callable[[int], None]
    ) -> tuple[list[float], dict[str, float]]:
        """Predict rows in batches and measure the time per batch.

        Args:
            rows: Rows as returned by :func:`read_table`.
            batch_size: Rows per batch.
            on_progress: Called after each batch with the number of completed rows.

        Returns:
            The probability of each row, and the time per batch in ms as p50_ms and p99_ms.
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
        """Return the region features of one meme, padded to the size of the model's inputs.

        Raises:
            ValueError: An array has the wrong shape or contains values that are not finite.
        """
        file, (max_boxes, dim) = np.load(path), (self.metadata["features"][key] for key in ("boxes", "dim"))
        count = min(max_boxes, len(file["features"]))
        shapes = {"features": (count, dim), "boxes": (count, 4), "image_size": (2,)}
        row = {"max_features": np.array(count)}
        for name in self.inputs & shapes.keys():
            values = file[name][:max_boxes]
            if values.shape != shapes[name] or not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite numbers of shape {shapes[name]}")
            row[name] = np.pad(values, ((0, max_boxes - count), (0, 0))) if values.ndim > 1 else values
        return row


def read_file(path: Path, read: Callable[[Path], Any], meme: object = None, error_prefix: str = "") -> Any:
    """Return ``read(path)``; raise ``UnusableInputError`` if that fails."""
    try:
        return read(path)
    except Exception as error:  # Pillow, numpy and onnxruntime have no common base class
        raise UnusableInputError(f"{error_prefix}{path}: {error}".partition("\n")[0], meme) from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the content of a model.json."""
    metadata = json.loads(path.read_text(encoding="utf-8"))
    return {key: metadata[key] for key in ("text", "image", "features", "inputs", "versions")}


def describe_error(error: Exception) -> str:
    """Return the message of an error, with its class unless it is an ``UnusableInputError``."""
    return str(error) if isinstance(error, UnusableInputError) else f"{type(error).__name__}: {error}"


def create_session(path: Path) -> onnxruntime.InferenceSession:
    """Create the session of a model from its bytes, because onnxruntime may not open every path."""
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def read_table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, with the paths in it resolved.

    Raises:
        ValueError: A row is invalid, or there are none.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() == ".jsonl":
            rows = [json.loads(line) for line in file if line.strip()]
        else:
            header = next(filter(str.strip, file), "")
            delimiter = max(",;\t", key=header.count)
            names = [name.strip().lower() for name in next(csv.reader([header], delimiter=delimiter), [])]
            rows = list(csv.DictReader(file, names, delimiter=delimiter))
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or None in row:
            problem = "has more values than columns" if isinstance(row, dict) else "is not a JSON object"
            raise ValueError(f"row {number} {problem}")
        row["id"] = number if row.get("id") in (None, "") else row["id"]
        row["img"] = row.get("img") or row.get("image")
        row |= {key: path.parent / row[key] if row.get(key) else None for key in ("img", "features")}
    if not rows:
        raise ValueError("no memes found")
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help=".csv or .jsonl")
    parser.add_argument("--image", type=Path)
    parser.add_argument("--text")
    parser.add_argument("--features", type=Path, help=".npz")
    parser.add_argument("-o", "--output", type=Path, help="write id,proba,label to this file, not to stdout")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent, help="its folder (default: this one)")
    parser.add_argument("--timings", action="store_true", help="print progress and ms per batch to stderr")
    args = parser.parse_args()
    meme = (args.image, args.text, args.features)
    if (args.table is None) == (meme == (None, None, None)):
        parser.error("pass either a table or a single meme")
    if args.output and not args.output.absolute().parent.is_dir():
        parser.error(f"{args.output}: folder not found")
    single_row = {"id": 1, "img": args.image, "text": args.text or "", "features": args.features}
    rows, batch_size = (read_file(args.table, read_table) if args.table else [single_row], max(1, args.batch_size))

    def print_progress(done: int) -> None:
        if len(rows) > batch_size and (args.timings or sys.stderr.isatty()):
            end = "\n" if done == len(rows) else "\r"
            print(f"{done} of {len(rows)} memes", end=end, file=sys.stderr, flush=True)

    probas, timings = Model(args.model).predict_all(rows, batch_size, print_progress)
    lines = [(row["id"], repr(p), int(p > 0.5)) for row, p in zip(rows, probas, strict=True)]
    to_file = args.output and args.output.open("w", encoding="utf-8", newline="")
    with to_file or nullcontext(sys.stdout) as file:
        csv.writer(file, lineterminator="\n").writerows([("id", "proba", "label"), *lines])
    if args.timings:
        print(json.dumps(timings), file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(f"error: {describe_error(error)}")
