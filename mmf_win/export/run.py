"""Predict memes with the model in this folder. It needs onnxruntime, tokenizers, pillow and numpy.

  python run.py --image cat.png --text "look at this cat"
  python run.py memes.csv -o predictions.csv

A table is a .csv or .jsonl with img (or image), text and optionally id; its paths are relative to it. A model
that reads region features takes no images, and something else must make the features: --features, or a column
of that name, is an .npz with features [boxes, numbers], and as far as model.json names them boxes [boxes, 4]
in pixels (x1, y1, x2, y2) and image_size [2] (height, width).
"""

import argparse
import csv
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnxruntime
    from PIL import Image
    from tokenizers import Tokenizer
except ImportError as missing:
    sys.exit(f"error: {missing}: pip install onnxruntime tokenizers pillow numpy")


class Model:
    """The model in a folder, and what makes its inputs."""

    def __init__(self, folder: Path) -> None:
        self.about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.text, self.inputs = self.about["text"], {each["name"] for each in self.about["inputs"]}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json")) if self.text else None
        content = (folder / "model.onnx").read_bytes()  # a path of any letters
        try:
            self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:  # of no common class
            why = f"onnxruntime {onnxruntime.__version__} cannot load it, perhaps another can"
            sys.exit(f"error: {folder / 'model.onnx'}: {why} ({str(error).splitlines()[0]})")

    def predict(self, rows: list[dict[str, Any]]) -> list[float]:
        """The probability of each row that it is hateful."""
        inputs: dict[str, Any] = {}
        needed = {"img": self.about["image"], "text": self.text, "features": self.about["features"]}
        for row, name in ((row, name) for row in rows for name, needs in needed.items() if needs):
            if row.get(name) is None:
                sys.exit(f"error: meme {row['id']} has no {name}, which this model needs; --help says more")
        if self.about["image"]:
            images = [np.asarray(Image.open(row["img"]).convert("RGB")) for row in rows]
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
        if self.about["features"]:
            most, files = self.about["features"]["boxes"], [np.load(row["features"]) for row in rows]
            inputs["max_features"] = np.array([min(most, len(file["features"])) for file in files])
            for name in self.inputs & {"features", "boxes", "image_size"}:
                parts = [file[name][:most] for file in files]
                shape = (2,) if name == "image_size" else (most, parts[0].shape[1])
                inputs[name] = np.zeros((len(rows), *shape))
                for part, place in zip(parts, inputs[name], strict=True):
                    place[: len(part)] = part
        wanted = {each["name"]: inputs[each["name"]].astype(each["dtype"]) for each in self.about["inputs"]}
        return [float(row[1]) for row in self.session.run(["probabilities"], wanted)[0]]


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, with paths that lead to the files from here."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        is_csv = path.suffix.lower() == ".csv"
        rows = list(csv.DictReader(file) if is_csv else map(json.loads, filter(str.strip, file)))
    for number, row in enumerate(rows, 1):
        row.setdefault("id", number)
        row.setdefault("img", row.get("image"))
        row |= {key: path.parent / row[key] for key in ("img", "features") if row.get(key)}
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
    asked, times = parser.parse_args(), list[float]()
    lines: list[tuple[Any, ...]] = [("id", "proba", "label")]
    of_one = (asked.image, asked.text, asked.features)
    if (asked.table is None) == (of_one == (None, None, None)):
        parser.error("name a table, or one meme")
    one = {"id": 1, "img": asked.image, "text": asked.text or "", "features": asked.features}
    rows, size = read_table(asked.table) if asked.table else [one], max(1, asked.batch_size)
    model = Model(asked.model)
    for start in range(0, len(rows), size):
        batch, began = rows[start : start + size], time.perf_counter()
        probas = model.predict(batch)
        times.append(1000 * (time.perf_counter() - began))
        lines += [(row["id"], repr(p), int(p > 0.5)) for row, p in zip(batch, probas, strict=True)]
        if len(rows) > size and (asked.timings or sys.stderr.isatty()):
            end = "\n" if len(lines) > len(rows) else "\r"
            print(f"{len(lines) - 1} of {len(rows)} memes", end=end, file=sys.stderr, flush=True)
    to_file = asked.output and asked.output.open("w", encoding="utf-8", newline="")
    with to_file or nullcontext(sys.stdout) as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    if asked.timings:
        p50, p99 = np.percentile(times, [50, 99]).round(2).tolist()
        print(json.dumps({"p50_ms": p50, "p99_ms": p99}), file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KeyError as error:
        sys.exit(f"error: there is no {error} in the table, or in an .npz")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        sys.exit(f"error: {type(error).__name__}: {error}")
