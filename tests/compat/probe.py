"""Report as JSON what the real MMF does once the patches are active.

``python -m tests.compat.probe MMF_ROOT WORLD``, in a process of its own, since patches change
the process and importing MMF takes seconds. Each question is a function; the answers go by its name.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmf_win import compat
from mmf_win.compat import mmf_data
from mmf_win.compat.patch import read_source
from tests.features.test_safe_pickle import UnusualObject
from tests.worlds import feature_files
from tests.worlds.tiny_mmf import BOX_COUNT, WORDS, TinyWorld


def imported(root: Path, world: TinyWorld) -> Any:
    """Return the models of transformers and the packages that MMF's entry has imported needlessly."""
    import mmf_cli.run
    import torch
    from mmf.utils.env import setup_imports

    assert mmf_cli.run.setup_imports is setup_imports
    setup_imports()
    # Older versions of transformers import the package of every model, which is next to nothing.
    names = [name.split(".") for name in sys.modules if name.startswith("transformers.models.")]
    models = {model for _, _, model, *module in names if module and module[-1].startswith("modeling_")}
    models -= {"auto", "bert", "roberta"}
    # Where they are installed, scikit-learn imports pandas by itself, and 1.0.0rc12 matplotlib.
    # Of the rest, an update needs nothing either; a step of an optimizer must not bring the compiler.
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]).step()
    slow = ("torch._dynamo", "torch.distributed.tensor", "sympy", "sklearn", "scipy", "pandas")
    return [sorted(models), sorted({"pytorch_lightning", *slow} & set(sys.modules))]


def adamw(root: Path, world: TinyWorld) -> Any:
    """The defaults of the optimizer that MMF's configurations name."""
    from mmf.common.registry import registry
    from torch import nn

    optimizer = registry.get_optimizer_class("adam_w")(nn.Linear(2, 2).parameters())
    return {key: optimizer.defaults[key] for key in ("weight_decay", "eps", "lr", "betas")}


def retries_offline(root: Path, world: TinyWorld) -> Any:
    """Count the retries of MMF 1.0.0rc12 with and without access to the Hugging Face Hub."""
    import transformers.utils.hub
    from mmf.utils import general

    tries: list[bool] = []
    general.time = SimpleNamespace(sleep=lambda _: None)

    def fail() -> None:
        tries.append(transformers.utils.hub.is_offline_mode())
        raise OSError

    for offline in (True, False):
        transformers.utils.hub._is_offline_mode = offline
        with suppress(OSError):
            getattr(general, "retry_n", lambda _, call: call())(3, fail)
    return [tries.count(True), tries.count(False) > 1 or not hasattr(general, "retry_n")]


def pictures(root: Path, world: TinyWorld) -> Any:
    """The first pixel of bright 16-bit grey, the sizes of a turned picture, and how often that is logged.

    It is turned for models that read pixels, not where its dataset has region features.
    """
    import logging

    from mmf.datasets.databases.image_database import ImageDatabase
    from omegaconf import OmegaConf
    from PIL import Image

    folder, logged = world.root / "pictures", list[str]()
    folder.mkdir(exist_ok=True)
    Image.new("I;16", (4, 2), 0x1234).save(folder / "grey.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(folder / "turned.png", exif=exif.tobytes())
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(mmf_data.__name__).addHandler(handler)

    def read(name: str, **config: object) -> Any:
        (image,) = ImageDatabase(OmegaConf.create(config), str(folder)).from_path(name)["images"]
        return image

    sizes = [read("turned.png").size, read("turned.png", use_features=True).size, read("turned.png").size]
    return [list(read("grey.png").getpixel((0, 0))), list(map(list, sizes)), len(logged)]


def small_batches(root: Path, world: TinyWorld) -> Any:
    """The shapes that batches of one and of two rows leave the encoders with."""
    import torch
    from mmf.models.fusions import FusionBase
    from mmf.models.unimodal import UnimodalBase
    from mmf.modules.encoders import TextEmbeddingEncoder
    from torch import nn

    class Words(nn.Module):
        forward = TextEmbeddingEncoder.forward
        _operator = "sum"

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Embedding(9, 6)

    def bare(base: type[nn.Module], **parts: nn.Module) -> nn.Module:
        model = base.__new__(base)
        nn.Module.__init__(model)
        for name, part in parts.items():
            setattr(model, name, part)
        return model

    shapes: dict[int, Any] = {}
    for rows in (1, 2):
        words = torch.ones(rows, 4, dtype=torch.long)
        image = torch.ones(rows, 1, 5)
        both = bare(FusionBase, text=Words(), modal=nn.Identity())(words, image)
        shapes[rows] = {
            "text": list(bare(UnimodalBase, encoder=Words())(words).shape),
            "image": list(bare(UnimodalBase, encoder=nn.Identity())(image).shape),
            "both": [list(part.shape) for part in both],
        }
    return shapes


def features(root: Path, world: TinyWorld) -> Any:
    """One feature file read for two splits, and once more in a forked child."""
    from mmf.datasets.databases.readers.feature_readers import FeatureReader

    def read() -> Any:
        reader = FeatureReader(str(world.dataset / "features" / "detectron.lmdb"), False, BOX_COUNT)
        return reader.read(f"{stem}.npy")

    stem = next((world.dataset / "images" / "img").iterdir()).stem
    first, info = read()
    second, _ = read()
    if not hasattr(os, "fork"):
        return [list(first.shape), info["num_boxes"], first.equal(second), 0]
    child = os.fork()
    if child == 0:
        os._exit(0 if read()[0].equal(first) else 1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [list(first.shape), info["num_boxes"], first.equal(second), ended]


def hostile_files(root: Path, world: TinyWorld) -> Any:
    """Return the replies of readers to files that would create a folder, and whether one did."""
    from mmf.datasets.databases.annotation_database import AnnotationDatabase
    from mmf.datasets.databases.readers.feature_readers import FeatureReader, PaddedFasterRCNNFeatureReader
    from mmf.modules.embeddings import ImageFinetune
    from mmf.modules.encoders import FinetuneFasterRcnnFpnFc7

    folder = world.root / "hostile"
    feature_files.write_pair(folder, "a")
    feature_files.write_pair(
        folder, "b", regions=3, feature_size=4, objects=UnusualObject(os.mkdir, (str(folder / "made"),))
    )
    shutil.copy(folder / "b_info.npy", folder / "c.npy")
    for name in ("w", "b"):
        content = pickle.dumps(UnusualObject(os.mkdir, (str(folder / "made"),)))
        (folder / f"fc7_{name}.pkl").write_bytes(content)
    weights = [str(folder / "fc7_w.pkl"), str(folder / "fc7_b.pkl")]

    def fc7() -> None:
        parts: Any = (4, "fc7_w.pkl", "fc7_b.pkl", str(folder))
        if config := getattr(FinetuneFasterRcnnFpnFc7, "Config", None):  # of 1.0.0rc12
            names = ("in_dim", "weights_file", "bias_file", "model_data_dir")
            parts = [config(**dict(zip(names, parts, strict=True)))]
        FinetuneFasterRcnnFpnFc7(*parts)

    def said(read: Callable[[], object]) -> str:
        try:
            read()
        except Exception as error:
            return type(error).__name__
        return "nothing"

    reader = PaddedFasterRCNNFeatureReader(100)
    features, info = reader.read(str(folder / "a.npy"))
    errors = [
        said(lambda: reader.read(str(folder / "b.npy"))),
        said(lambda: FeatureReader(str(folder), False, 100).read("c.npy")),
        said(lambda: AnnotationDatabase(None, str(folder / "c.npy"))),
        said(lambda: ImageFinetune(4, *weights)),
        said(fc7),
    ]
    return [
        {*errors} == {"UnsafeFeaturesError"} or errors,
        (folder / "made").exists(),
        list(features.shape),
        info["num_boxes"],
    ]


def word_vectors(root: Path, world: TinyWorld) -> Any:
    """The words and the size of the GloVe file in the cache folder, and whether one has its numbers."""
    from mmf.utils import vocab

    vectors = vocab.vocab.pretrained_aliases["glove.6B.300d"](cache=str(world.cache))
    line = (world.cache / "glove.6B.300d.txt").read_text(encoding="utf-8").splitlines()[WORDS.index("世界")]
    numbers = [f"{number:.4f}" for number in vectors.vectors[vectors.stoi["世界"]]]
    return [vectors.itos, vectors.vectors.shape[1], line.split()[1:] == numbers]


def random_vectors(root: Path, world: TinyWorld) -> Any:
    """The mean and the deviation of a random vocabulary's vectors."""
    from mmf.utils.vocab import Vocab

    words = world.data / "vocabs" / "vocabulary_100k.txt"
    vectors = Vocab(type="random", vocab_file=str(words), embedding_dim=300).get_vectors()
    return [float(vectors.mean()), float(vectors.std())]


def text_link(root: Path, world: TinyWorld) -> Any:
    """A configuration behind a link that is text, with an include beside the real file."""
    from mmf.utils.configuration import load_yaml

    real = world.root / "real" / "defaults.yaml"
    real.parent.mkdir(exist_ok=True)
    real.write_text("includes: [./other.yaml]\na: 1\n", encoding="utf-8")
    (real.parent / "other.yaml").write_text("b: 2\n", encoding="utf-8")
    link = world.root / "link.yaml"
    link.write_text("real/defaults.yaml", encoding="utf-8")
    return dict(load_yaml(str(link)))


def seeds(root: Path, world: TinyWorld) -> Any:
    """Count the random numbers drawn after the seed 0, twice, and without a seed, twice."""
    import torch
    from mmf.utils.env import set_seed

    return [len({(set_seed(seed), torch.rand(1).item())[1] for _ in range(2)}) for seed in (0, None)]


def weights_in_brackets(root: Path, world: TinyWorld) -> Any:
    """The weights in a folder whose name is a pattern."""
    import torch
    from mmf.utils.checkpoint import load_pretrained_model

    folder = world.root / "[a] b"
    folder.mkdir(exist_ok=True)  # the other MMF may have been asked before
    (folder / "config.yaml").write_text("model_config: {a: 1}", encoding="utf-8")
    torch.save({"model": {"weight": torch.ones(1)}}, folder / "model.pth")
    return list(load_pretrained_model(str(folder))["checkpoint"])


def csv_report(root: Path, world: TinyWorld) -> Any:
    """A report with texts of any language, as it is on the disk."""
    from mmf.common.test_reporter import TestReporter

    path = world.root / "отчёт.csv"
    rows = [{"id": 8291, "text": "a"}, {"id": 1, "text": "Привет,\n世界"}]
    TestReporter.csv_dump(SimpleNamespace(report=rows), str(path))
    return path.read_bytes().decode()


def late(root: Path, world: TinyWorld) -> Any:
    """Compute MMF's own metrics with a scikit-learn that was not imported before."""
    import torch
    from mmf.modules import metrics

    report = {
        "scores": torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]),
        "targets": torch.tensor([0, 1, 1, 0]),
    }
    found = (metrics.ROC_AUC(), metrics.BinaryF1())
    return [float(metric.calculate(report, report)) for metric in found]


def predictions(root: Path, world: TinyWorld) -> Any:
    """Return whether predictions equal those of MMF's own function, number by number."""
    import torch
    from mmf.common.report import Report
    from mmf.datasets.builders.hateful_memes import dataset

    report = Report.__new__(Report)
    random = torch.Generator().manual_seed(1)
    report["scores"] = torch.randn(50, 2, generator=random)
    report["id"] = torch.arange(100, 150, dtype=torch.int)
    lines = read_source("mmf.datasets.builders.hateful_memes.dataset", root)
    own: dict[str, Any] = {"torch": torch}
    name = next(name for name in mmf_data._PREDICTION_FUNCTIONS if f"def {name}(" in lines)
    exec(lines[lines.index(f"def {name}(") :].partition("\n\n\n")[0], own)
    assert getattr(dataset, name) is mmf_data.generate_prediction
    return own[name](report) == mmf_data.generate_prediction(report)


def found_when_asked_for(root: Path, world: TinyWorld) -> Any:
    """A dataset that was not imported, before and after it is asked for, and a model that is nowhere."""
    from mmf.common.registry import registry

    before = "coco" in registry.mapping["builder_name_mapping"]
    found = registry.get_builder_class("coco")
    return [before, found and found.__name__, registry.get_model_class("no such model")]


def left_alone_by_the_compiler(root: Path, world: TinyWorld) -> Any:
    """Return a class, a model and a function that must not be compiled."""
    import torch

    class Thing:
        pass

    model = torch.compiler.disable(torch.nn.Linear(2, 3))
    return [
        isinstance(torch.compiler.disable(Thing), type),
        len(list(model.parameters())),
        torch.compiler.disable(abs)(-1),
    ]


def saved_weights(root: Path, world: TinyWorld) -> Any:
    """In which order a checkpoint is saved, and what is said of weights that are not finite."""
    import torch
    from mmf.utils.checkpoint import Checkpoint as MmfCheckpoint

    from mmf_win.worker.hooks.checkpoint_io import replace_attribute
    from mmf_win.worker.hooks.checkpoints import Checkpoint
    from mmf_win.worker.hooks.phase_timer import PhaseTimer
    from mmf_win.worker.outcome import DivergedError

    done: list[str] = []
    observer = SimpleNamespace(
        phase_timer=PhaseTimer(),
        is_main=False,
        report_saving=lambda update: done.append(f"saving {update}"),
        write_event=lambda kind, **_: done.append(kind),
    )

    def saved(*values: float) -> list[str]:
        checkpoint = Checkpoint.__new__(Checkpoint)
        model = torch.nn.Linear(len(values), 1)
        model.weight.data = torch.tensor([values])
        checkpoint._observer, checkpoint.resume_state = observer, None
        checkpoint.trainer = SimpleNamespace(model=model)
        done.clear()
        try:
            checkpoint.save(2)
        except DivergedError as error:
            done.append(str(error))
        return [*done]

    with replace_attribute(MmfCheckpoint, "save", lambda *_, **__: done.append("written")):
        return [saved(0.0, 1e30), saved(0.0, math.nan), saved(math.inf, 0.0)]


QUESTIONS: tuple[Callable[[Path, TinyWorld], Any], ...] = (
    *(imported, adamw, pictures, small_batches, features, hostile_files, word_vectors, random_vectors, text_link),
    *(csv_report, late, predictions, found_when_asked_for, left_alone_by_the_compiler, seeds),
    *(weights_in_brackets, retries_offline, saved_weights),
)


def main(root: Path, world: TinyWorld) -> None:
    """Print the answers, each by its question's name, as the last line."""
    os.environ.update(world.environment)
    compat.install(root)
    answers = {ask.__name__: ask(root, world) for ask in QUESTIONS}
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), TinyWorld(Path(sys.argv[2])))
