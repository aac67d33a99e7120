"""Program that prints as JSON how the real MMF behaves with the patches.

``python -m tests.compat.probe MMF_ROOT WORLD`` runs in a separate process, because patches change the
process and importing MMF takes seconds. Each probe is a function; the results are keyed by its name.
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
from tests.worlds import feature_files
from tests.worlds.pickles import UnusualObject
from tests.worlds.tiny_mmf import BOX_COUNT, WORDS, TinyWorld


def list_needless_imports(root: Path, world: TinyWorld) -> Any:
    """Return the models of transformers and the packages that MMF's entry imports needlessly."""
    import mmf_cli.run
    import torch
    from mmf.utils.env import setup_imports

    assert mmf_cli.run.setup_imports is setup_imports
    setup_imports()
    # Older versions of transformers import the package of every model, which is almost empty.
    names = [name.split(".") for name in sys.modules if name.startswith("transformers.models.")]
    models = {model for _, _, model, *module in names if module and module[-1].startswith("modeling_")}
    models -= {"auto", "bert", "roberta"}
    # If they are installed, scikit-learn itself imports pandas, and MMF 1.0.0rc12 imports matplotlib.
    # A training update needs none of the other packages. In particular, an optimizer step must not import the compiler.
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]).step()
    slow = ("torch._dynamo", "torch.distributed.tensor", "sympy", "sklearn", "scipy", "pandas")
    return [sorted(models), sorted({"pytorch_lightning", *slow} & set(sys.modules))]


def read_adamw_defaults(root: Path, world: TinyWorld) -> Any:
    """Return the defaults of the optimizer that MMF's configurations name."""
    from mmf.common.registry import registry
    from torch import nn

    optimizer = registry.get_optimizer_class("adam_w")(nn.Linear(2, 2).parameters())
    return {key: optimizer.defaults[key] for key in ("weight_decay", "eps", "lr", "betas")}


def count_offline_retries(root: Path, world: TinyWorld) -> Any:
    """Count the retries of MMF 1.0.0rc12 with and without access to the Hugging Face Hub."""
    import transformers.utils.hub
    from mmf.utils import general

    offline_attempts: list[bool] = []
    general.time = SimpleNamespace(sleep=lambda _: None)

    def fail() -> None:
        offline_attempts.append(transformers.utils.hub.is_offline_mode())
        raise OSError

    for offline in (True, False):
        transformers.utils.hub._is_offline_mode = offline
        with suppress(OSError):
            getattr(general, "retry_n", lambda _, call: call())(3, fail)
    return [offline_attempts.count(True), offline_attempts.count(False) > 1 or not hasattr(general, "retry_n")]


def read_images(root: Path, world: TinyWorld) -> Any:
    """Read a 16-bit grey image and an image with an EXIF rotation.

    MMF rotates images for models that read pixels, but not for datasets with region features.

    Returns:
        The first pixel of the grey image, the sizes of the rotated one in three reads, and the number of log messages.
    """
    import logging

    from mmf.datasets.databases.image_database import ImageDatabase
    from omegaconf import OmegaConf
    from PIL import Image

    folder, log_messages = world.root / "pictures", list[str]()
    folder.mkdir(exist_ok=True)
    Image.new("I;16", (4, 2), 0x1234).save(folder / "grey.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(folder / "turned.png", exif=exif.tobytes())
    handler = logging.Handler()
    handler.emit = lambda record: log_messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(mmf_data.__name__).addHandler(handler)

    def read(name: str, **config: object) -> Any:
        (image,) = ImageDatabase(OmegaConf.create(config), str(folder)).from_path(name)["images"]
        return image

    sizes = [read("turned.png").size, read("turned.png", use_features=True).size, read("turned.png").size]
    return [list(read("grey.png").getpixel((0, 0))), list(map(list, sizes)), len(log_messages)]


def encode_small_batches(root: Path, world: TinyWorld) -> Any:
    """Return the output shapes of the encoders for batches of one and two rows."""
    import torch
    from mmf.models.fusions import FusionBase
    from mmf.models.unimodal import UnimodalBase
    from mmf.modules.encoders import TextEmbeddingEncoder
    from torch import nn

    class TextEncoder(nn.Module):
        forward = TextEmbeddingEncoder.forward
        _operator = "sum"

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Embedding(9, 6)

    def create_bare_model(base: type[nn.Module], **modules: nn.Module) -> nn.Module:
        model = base.__new__(base)
        nn.Module.__init__(model)
        for name, module in modules.items():
            setattr(model, name, module)
        return model

    shapes: dict[int, Any] = {}
    for rows in (1, 2):
        token_ids = torch.ones(rows, 4, dtype=torch.long)
        image = torch.ones(rows, 1, 5)
        fusion_outputs = create_bare_model(FusionBase, text=TextEncoder(), modal=nn.Identity())(token_ids, image)
        shapes[rows] = {
            "text": list(create_bare_model(UnimodalBase, encoder=TextEncoder())(token_ids).shape),
            "image": list(create_bare_model(UnimodalBase, encoder=nn.Identity())(image).shape),
            "both": [list(output.shape) for output in fusion_outputs],
        }
    return shapes


def read_features(root: Path, world: TinyWorld) -> Any:
    """Read one feature file for two splits, and once more in a forked child."""
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
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [list(first.shape), info["num_boxes"], first.equal(second), exit_code]


def read_unsafe_files(root: Path, world: TinyWorld) -> Any:
    """Read files whose pickles would create a folder; return the readers' errors and whether the folder exists."""
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
        if config := getattr(FinetuneFasterRcnnFpnFc7, "Config", None):  # MMF 1.0.0rc12
            names = ("in_dim", "weights_file", "bias_file", "model_data_dir")
            parts = [config(**dict(zip(names, parts, strict=True)))]
        FinetuneFasterRcnnFpnFc7(*parts)

    def error_name(read: Callable[[], object]) -> str:
        try:
            read()
        except Exception as error:
            return type(error).__name__
        return "nothing"

    reader = PaddedFasterRCNNFeatureReader(100)
    features, info = reader.read(str(folder / "a.npy"))
    errors = [
        error_name(lambda: reader.read(str(folder / "b.npy"))),
        error_name(lambda: FeatureReader(str(folder), False, 100).read("c.npy")),
        error_name(lambda: AnnotationDatabase(None, str(folder / "c.npy"))),
        error_name(lambda: ImageFinetune(4, *weights)),
        error_name(fc7),
    ]
    return [
        {*errors} == {"UnsafeFeaturesError"} or errors,
        (folder / "made").exists(),
        list(features.shape),
        info["num_boxes"],
    ]


def load_word_vectors(root: Path, world: TinyWorld) -> Any:
    """Return the words and the vector size of a cached GloVe file, and whether one vector equals its line."""
    from mmf.utils import vocab

    vectors = vocab.vocab.pretrained_aliases["glove.6B.300d"](cache=str(world.cache))
    line = (world.cache / "glove.6B.300d.txt").read_text(encoding="utf-8").splitlines()[WORDS.index("世界")]
    vector = [f"{number:.4f}" for number in vectors.vectors[vectors.stoi["世界"]]]
    return [vectors.itos, vectors.vectors.shape[1], line.split()[1:] == vector]


def measure_random_vectors(root: Path, world: TinyWorld) -> Any:
    """Return the mean and the standard deviation of the vectors of a random vocabulary."""
    from mmf.utils.vocab import Vocab

    vocabulary = world.data / "vocabs" / "vocabulary_100k.txt"
    vectors = Vocab(type="random", vocab_file=str(vocabulary), embedding_dim=300).get_vectors()
    return [float(vectors.mean()), float(vectors.std())]


def load_text_link(root: Path, world: TinyWorld) -> Any:
    """Load a configuration by a text file that replaces a symbolic link; it includes a file next to the real one."""
    from mmf.utils.configuration import load_yaml

    real = world.root / "real" / "defaults.yaml"
    real.parent.mkdir(exist_ok=True)
    real.write_text("includes: [./other.yaml]\na: 1\n", encoding="utf-8")
    (real.parent / "other.yaml").write_text("b: 2\n", encoding="utf-8")
    link = world.root / "link.yaml"
    link.write_text("real/defaults.yaml", encoding="utf-8")
    return dict(load_yaml(str(link)))


def count_numbers_by_seed(root: Path, world: TinyWorld) -> Any:
    """Count the distinct random numbers of two draws, both with seed 0 and without a seed."""
    import torch
    from mmf.utils.env import set_seed

    return [len({(set_seed(seed), torch.rand(1).item())[1] for _ in range(2)}) for seed in (0, None)]


def load_weights_from_brackets(root: Path, world: TinyWorld) -> Any:
    """Return the names of weights loaded from a folder whose name is a glob pattern."""
    import torch
    from mmf.utils.checkpoint import load_pretrained_model

    folder = world.root / "[a] b"
    folder.mkdir(exist_ok=True)  # the probe of the other MMF may have created it
    (folder / "config.yaml").write_text("model_config: {a: 1}", encoding="utf-8")
    torch.save({"model": {"weight": torch.ones(1)}}, folder / "model.pth")
    return list(load_pretrained_model(str(folder))["checkpoint"])


def write_csv_report(root: Path, world: TinyWorld) -> Any:
    """Write a report with texts in several languages and return the file's content."""
    from mmf.common.test_reporter import TestReporter

    path = world.root / "отчёт.csv"
    rows = [{"id": 8291, "text": "a"}, {"id": 1, "text": "Привет,\n世界"}]
    TestReporter.csv_dump(SimpleNamespace(report=rows), str(path))
    return path.read_bytes().decode()


def calculate_metrics(root: Path, world: TinyWorld) -> Any:
    """Compute MMF's own metrics, for which scikit-learn is imported lazily."""
    import torch
    from mmf.modules import metrics

    report = {
        "scores": torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]]),
        "targets": torch.tensor([0, 1, 1, 0]),
    }
    calculated = (metrics.ROC_AUC(), metrics.BinaryF1())
    return [float(metric.calculate(report, report)) for metric in calculated]


def compare_predictions(root: Path, world: TinyWorld) -> Any:
    """Return whether predictions equal those of MMF's own function, number by number."""
    import torch
    from mmf.common.report import Report
    from mmf.datasets.builders.hateful_memes import dataset

    report = Report.__new__(Report)
    random = torch.Generator().manual_seed(1)
    report["scores"] = torch.randn(50, 2, generator=random)
    report["id"] = torch.arange(100, 150, dtype=torch.int)
    source = read_source("mmf.datasets.builders.hateful_memes.dataset", root)
    mmf_functions: dict[str, Any] = {"torch": torch}
    name = next(name for name in mmf_data._PREDICTION_FUNCTIONS if f"def {name}(" in source)
    exec(source[source.index(f"def {name}(") :].partition("\n\n\n")[0], mmf_functions)
    assert getattr(dataset, name) is mmf_data.generate_prediction
    return mmf_functions[name](report) == mmf_data.generate_prediction(report)


def look_up_lazy_modules(root: Path, world: TinyWorld) -> Any:
    """Look up a dataset that was not imported before, and a model that does not exist."""
    from mmf.common.registry import registry

    before = "coco" in registry.mapping["builder_name_mapping"]
    builder = registry.get_builder_class("coco")
    return [before, builder and builder.__name__, registry.get_model_class("no such model")]


def disable_compiler(root: Path, world: TinyWorld) -> Any:
    """Exclude a class, a model and a function from compilation and check that they stay usable."""
    import torch

    class Thing:
        pass

    model = torch.compiler.disable(torch.nn.Linear(2, 3))
    return [
        isinstance(torch.compiler.disable(Thing), type),
        len(list(model.parameters())),
        torch.compiler.disable(abs)(-1),
    ]


def save_weights(root: Path, world: TinyWorld) -> Any:
    """Return the steps of saving a checkpoint with finite weights and with weights that are not finite."""
    import torch
    from mmf.utils.checkpoint import Checkpoint as MmfCheckpoint

    from mmf_win.worker.hooks.checkpoint_io import replace_attribute
    from mmf_win.worker.hooks.checkpoints import Checkpoint
    from mmf_win.worker.hooks.phase_timer import PhaseTimer
    from mmf_win.worker.outcome import DivergedError

    steps: list[str] = []
    observer = SimpleNamespace(
        phase_timer=PhaseTimer(),
        is_main=False,
        report_saving=lambda update: steps.append(f"saving {update}"),
        write_event=lambda kind, **_: steps.append(kind),
    )

    def save_weights_of(*values: float) -> list[str]:
        checkpoint = Checkpoint.__new__(Checkpoint)
        model = torch.nn.Linear(len(values), 1)
        model.weight.data = torch.tensor([values])
        checkpoint._observer, checkpoint.resume_state = observer, None
        checkpoint.trainer = SimpleNamespace(model=model)
        steps.clear()
        try:
            checkpoint.save(2)
        except DivergedError as error:
            steps.append(str(error))
        return [*steps]

    with replace_attribute(MmfCheckpoint, "save", lambda *_, **__: steps.append("written")):
        return [save_weights_of(0.0, 1e30), save_weights_of(0.0, math.nan), save_weights_of(math.inf, 0.0)]


PROBES: tuple[Callable[[Path, TinyWorld], Any], ...] = (
    list_needless_imports,
    read_adamw_defaults,
    read_images,
    encode_small_batches,
    read_features,
    read_unsafe_files,
    load_word_vectors,
    measure_random_vectors,
    load_text_link,
    write_csv_report,
    calculate_metrics,
    compare_predictions,
    look_up_lazy_modules,
    disable_compiler,
    count_numbers_by_seed,
    load_weights_from_brackets,
    count_offline_retries,
    save_weights,
)


def main(root: Path, world: TinyWorld) -> None:
    """Print the results of all probes, keyed by name, as the last line."""
    os.environ.update(world.environment)
    compat.install(root)
    results = {probe.__name__: probe(root, world) for probe in PROBES}
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), TinyWorld(Path(sys.argv[2])))
