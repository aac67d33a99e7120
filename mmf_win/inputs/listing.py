"""The files that a configuration of MMF makes a run read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmf_win.dataset.features import choose_features, mark_built
from mmf_win.errors import DamagedFeatures, DataError, NoSource
from mmf_win.inputs import caches
from mmf_win.integrity.finding import Finding
from mmf_win.integrity.manifest import Manifest, Source, noted
from mmf_win.paths import Places
from mmf_win.upstream.config import Tree
from mmf_win.upstream.zoo import Zoo, ZooEntry

Kind = Literal["features", "extras", "weights", "fc7", "glove", "bert", "tokenizer", "resnet", "other"]

_CHECKPOINTS = ("*.ckpt", "*.pth", "*.pt")  # mmf.utils.checkpoint.ALLOWED_CHECKPOINT_EXTS


@dataclass(frozen=True)
class Need:
    """Files that belong together and come from one place.

    Attributes:
        kind: what they are.
        title: what they are, for people.
        folder: holds all of them; of a model of the Hub, the folder of its versions.
        names: the files that a run opens, relative to the folder with ``/``; empty where they are not known
            before they are there.
        entry: what MMF's zoo says of them, where they come from there.
        url: where they come from otherwise, if that is known.
        library: who fetches them by itself when a run starts, if anybody does.
    """

    kind: Kind
    title: str
    folder: Path
    names: tuple[str, ...] = ()
    entry: ZooEntry | None = None
    url: str | None = None
    library: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files that a run opens, there or not."""
        return [self.place / name for name in self.found_names]

    @property
    def place(self) -> Path:
        """The folder in which the files themselves are."""
        if self.library == "transformers" and self.url is not None:
            return caches.hub_snapshot(self.url) or self.folder
        return self.folder

    @property
    def found_names(self) -> tuple[str, ...]:
        """``names``, or those of the files that are there where they are not known before."""
        if self.names:
            return self.names
        if self.is_of_hub:
            return tuple(path.name for path in caches.bert_in(self.place, weights=self.kind == "bert"))
        found = (path for pattern in _CHECKPOINTS for path in self.folder.glob(pattern))
        return tuple(sorted(path.name for path in found))

    @property
    def is_there(self) -> bool:
        """Whether all of its files are there, intact or not."""
        if self.is_of_hub:
            return caches.is_complete_bert(self.place, weights=self.kind == "bert")
        return bool(self.found_names) and all(path.is_file() for path in self.files)

    @property
    def is_of_hub(self) -> bool:
        """Whether it is in the format of the Hugging Face Hub."""
        return self.kind in ("bert", "tokenizer")

    @property
    def has_manifest(self) -> bool:
        """Whether the files lie in a folder of MMF's downloads, where a manifest belongs."""
        return self.kind in ("features", "extras", "weights", "fc7")

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the folder, without files where it is damaged; None where there is none."""
        if not self.has_manifest:
            return None
        with suppress(DataError):
            if manifest := Manifest.load(self.folder):
                return manifest
        return noted(self.folder)

    @property
    def source(self) -> Source | None:
        """The archive that the files were made of, as far as that is known."""
        manifest = self.manifest
        return manifest.source if manifest else None

    @property
    def is_built(self) -> bool:
        """Whether mmfw made it of the user's own files."""
        manifest = self.manifest
        return manifest is not None and manifest.basis == "built"

    @property
    def has_source(self) -> bool:
        """Whether they can be downloaded, or an archive is known that they came out of."""
        return not self.is_built and bool(self.entry or self.url or self.source)

    def choose(self, member: str) -> str | None:
        """Where a member of the archive goes, below :attr:`folder`; None for one that is not wanted."""
        if self.kind == "features":
            return choose_features(member)
        if self.kind == "extras":
            return f"/{member}".partition("/extras/")[2] or None
        return member


def needs_of(root: Path, places: Places, config: Tree, slots: Sequence[str] = ("train", "val")) -> list[Need]:
    """The files that a run reads, beside the annotations, the images and its own checkpoints.

    Args:
        root: the folder that holds the package ``mmf``.
        places: MMF's folders.
        config: as :func:`mmf_win.upstream.config.resolve` gives it.
        slots: which of ``train``, ``val`` and ``test`` it reads.

    Raises:
        UsageError: the zoo that the user chose is none.
        MmfError: MMF's own zoo cannot be read.
    """
    zoo = Zoo(root, places, config["env"]["dataset_zoo"], config["env"]["model_zoo"])
    found = [
        *_features(zoo, config["dataset"], slots),
        *_vocabularies(zoo, config),
        *_pretrained(zoo, config["checkpoint"]),
        *_encoders(zoo, config["model"]),
        *_berts(config),
    ]
    return list(dict.fromkeys(found))


def _features(zoo: Zoo, dataset: Tree, slots: Sequence[str]) -> Iterator[Need]:
    if not dataset.get("use_features"):
        return
    for path in dict.fromkeys(paths_of(dataset, "features", slots)):
        if path.suffix != ".lmdb":
            files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.npy"))
            folder, names = (path, tuple(files)) if files else (path.parent, (path.name,))
            yield Need("other", "region features", folder, names)
            continue
        name = f"{path.name}/data.mdb"
        own = path == zoo.places.dataset.features / path.name
        entry = zoo.dataset("features") if own else None
        yield Need("features", "region features", path.parent, (name,), entry)


def paths_of(dataset: Tree, attribute: str, slots: Sequence[str]) -> list[Path]:
    """The paths of annotations, images or features that MMF would join (mmf.datasets.mmf_dataset).

    Args:
        dataset: the dataset's configuration.
        attribute: ``annotations``, ``images`` or ``features``.
        slots: which of ``train``, ``val`` and ``test`` are meant.
    """
    chosen = dataset.get(attribute) or {}
    listed = (chosen.get(slot) or [] for slot in slots)
    flat = (item for items in listed for item in ([items] if isinstance(items, str) else items))
    base = Path(str(dataset.get("data_dir", "")))
    return [base / part for item in flat for part in str(item).split(",")]


def _vocabularies(zoo: Zoo, config: Tree) -> Iterator[Need]:
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    if text.get("type") == "vocab":
        base = str(config["dataset"].get("data_dir", ""))
        yield from _vocabulary(zoo, (text.get("params") or {}).get("vocab") or {}, base)
    for params in _params_of(config["model"], "embedding"):
        embedding = params.get("embedding_params") or {}
        if embedding.get("type") == "vocab":
            yield from _vocabulary(zoo, embedding.get("params") or {})


def _vocabulary(zoo: Zoo, vocab: Tree, data_dir: str | None = None) -> Iterator[Need]:
    words, vectors = vocab.get("vocab_file"), vocab.get("embedding_name")
    if words:
        path = Path(data_dir or str(vocab.get("data_dir", "")), str(words))
        extras = zoo.places.dataset.root / "extras"
        if path.is_relative_to(extras):
            name = path.relative_to(extras).as_posix()
            yield Need("extras", "vocabulary", extras, (name,), zoo.dataset("extras"))
        else:
            yield Need("other", "vocabulary", path.parent, (path.name,))
    if vocab.get("type") != "random" and str(vectors).startswith("glove."):
        yield Need("glove", "GloVe word vectors", zoo.places.cache_dir, (f"{vectors}.txt",))


def _pretrained(zoo: Zoo, checkpoint: Tree) -> Iterator[Need]:
    key = checkpoint.get("resume_zoo")
    if not key or checkpoint.get("resume_file"):
        return
    local = Path(str(key)).expanduser()
    if local.is_file():
        yield Need("weights", "pretrained weights", local.parent, (local.name,))
    elif local.is_dir():
        yield Need("weights", "pretrained weights", local)
    else:
        yield zoo_weights(zoo, str(key))


def zoo_weights(zoo: Zoo, key: str) -> Need:
    """The weights that a zoo has under a key; one that it lacks gives a need without an entry."""
    entry = zoo.model(key)
    folder = entry.folder if entry else zoo.places.data_dir / "models" / key
    return Need("weights", f"weights {key}", folder, entry=entry)


def _encoders(zoo: Zoo, model: Tree) -> Iterator[Need]:
    for params in _params_of(model, "finetune_faster_rcnn_fpn_fc7"):
        base = Path(str(params.get("model_data_dir", zoo.places.data_dir)))
        weights, bias = (base / str(params.get(f"{part}_file", "")) for part in ("weights", "bias"))
        yield _fc7(zoo, weights, bias)
    for params in _params_of(model, "resnet152"):
        if params.get("pretrained", True):
            yield resnet152(caches.torch_checkpoints())


def resnet152(folder: Path) -> Need:
    """The weights that torchvision would download, in a folder of PyTorch Hub's."""
    url = caches.RESNET152
    return Need("resnet", "ResNet-152", folder, (url.rpartition("/")[2],), url=url, library="torchvision")


def _fc7(zoo: Zoo, weights: Path, bias: Path) -> Need:
    """The detector's last layer, where the configuration has it, or where MMF would have put it."""
    title, names = "detectron fc7", (weights.name, bias.name)
    of_mmf = zoo.model("detectron.vmb_weights")
    configured = weights.is_file() and bias.is_file()
    if of_mmf and not configured and all((of_mmf.folder / name).is_file() for name in names):
        return Need("fc7", title, of_mmf.folder, names, of_mmf)
    entry = zoo.model("detectron")
    own = entry if entry and entry.folder == weights.parent == bias.parent else None
    return Need("fc7", title, weights.parent, names, own)


def _berts(config: Tree) -> Iterator[Need]:
    models = [config["model"].get("bert_model_name")] if _wants_bert(config["model"]) else []
    models += [params.get("bert_model_name") for params in _params_of(config["model"], "transformer")]
    models += [config["model"].get("transformer_base")]
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    params = text.get("params") or {}
    tokenizers = [(params.get("tokenizer_config") or {}).get("type"), params.get("from_pretrained")]
    for name in dict.fromkeys(str(name) for name in (*models, *tokenizers) if name):
        yield hub_model(name, "bert" if name in models else "tokenizer")


def asks_hub(config: Tree, needs: Sequence[Need]) -> bool:
    """Whether a run may read more of the Hugging Face Hub than is listed, which are the files of BERTs.

    Args:
        config: as for :func:`needs_of`.
        needs: what that lists, all of it there.
    """
    models = [need.place for need in needs if need.library == "transformers"]
    unlisted = config["env"].get("user_dir") or config["code"] or list(_params_of(config["model"], "vit"))
    return bool(unlisted) or not models or not all(map(caches.is_bert, models))


def hub_model(name: str, kind: Literal["bert", "tokenizer"]) -> Need:
    """A BERT in transformers' format, by its name on the Hugging Face Hub or by its folder."""
    folder = Path(name)
    title = ("BERT" if kind == "bert" else "tokenizer") + f" {folder.name}"
    if folder.is_dir() or folder.is_absolute() or name.count("/") > 1:
        return Need(kind, title, folder)
    return Need(kind, title, caches.hub_model(name), url=name, library="transformers")


def _wants_bert(model: Tree) -> bool:
    """Whether a model uses its own ``bert_model_name``, and not one that its text encoder leaves unused."""
    encoder = model.get("text_encoder") or {}
    return not encoder or encoder.get("type") == "transformer"


def _params_of(tree: Any, kind: str) -> Iterator[Tree]:
    """The ``params`` of every mapping below ``tree`` with this ``type``, as MMF describes its modules."""
    if isinstance(tree, Mapping) and tree.get("type") == kind:
        yield dict(tree.get("params") or {})
    if isinstance(tree, (Mapping, list)):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _params_of(value, kind)


def write_built_markers(needs: Iterable[Need]) -> None:
    """Note for MMF that these are there and right; without that, it downloads them again."""
    for entry in (need.entry for need in needs if need.entry):
        with suppress(OSError):  # of a folder that is read-only
            mark_built(entry.marker, entry.version)


def no_source(need: Need, finding: Finding, places: Places, words: Sequence[str] = ()) -> DataError | None:
    """The error that files are damaged or missing and nothing known has them; None where something has.

    Args:
        need: the files.
        finding: what is wrong with them.
        places: MMF's folders.
        words: the preset and the overrides that make a run read them.
    """
    if need.has_source:
        return None
    problems = "; ".join(finding.problems)
    if need.kind == "features":
        return DamagedFeatures(f"{need.folder}: {problems}", lmdb=need.files[0].parent)
    hint = "put an intact copy there; mmfw knows no source of it"
    if need.kind == "glove":
        hint = "put it there, or let each vocab of the configuration have the type random"
    return NoSource(f"{need.title}: {problems}", hint=hint, words=words, data_dir=places.data_dir)
