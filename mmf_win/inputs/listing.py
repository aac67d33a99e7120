"""The files that a configuration of MMF makes a run read, and those that mmfw has ever got or read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmf_win.errors import DataError
from mmf_win.inputs import hub
from mmf_win.inputs.given import Input, UrlFile
from mmf_win.inputs.ledger import read_ledger
from mmf_win.inputs.unpacked import RegionFeatures, Unpacked
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, load_manifest_notes
from mmf_win.paths import MmfPaths, expand_home, torch_home
from mmf_win.unpacking.staging import is_install_incomplete, staging_folder
from mmf_win.upstream.config import Tree
from mmf_win.upstream.overrides import parts
from mmf_win.upstream.zoo import Zoo, ZooEntry

# From where torchvision has got the weights that MMF asks for, by pretrained=True, since 0.13.
_RESNET152 = "https://download.pytorch.org/models/resnet152-394f9c45.pth"


def inputs_of(
    root: Path, places: MmfPaths, config: Tree, slots: Sequence[str] = ("train", "val")
) -> list[Input]:
    """The files that a run reads, beside the annotations, the images and its own checkpoints.

    Its ``config`` is as :func:`mmf_win.upstream.config.resolve` gives it. Errors are those of :class:`Zoo`.
    """
    zoo = Zoo(root, places, config["env"]["dataset_zoo"], config["env"]["model_zoo"])
    found = [
        *_features(zoo, config["dataset"], slots),
        *_vocabularies(zoo, config),
        *_pretrained(zoo, config["checkpoint"]),
        *_encoders(zoo, config["model"]),
        *_models(config, places),
    ]
    return list(dict.fromkeys(found))


def _features(zoo: Zoo, dataset: Tree, slots: Sequence[str]) -> Iterator[Input]:
    places = zoo.places
    for path in dict.fromkeys(paths_of(dataset, "features", slots) if dataset.get("use_features") else []):
        if path.suffix == ".lmdb":
            own = path.parent == places.dataset.features
            entry = zoo.dataset("features") if own else None
            data = f"{path.name}/data.mdb"
            yield RegionFeatures("region features", path.parent, places, (data,), entry=entry)
        else:
            files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.npy"))
            folder, names = (path, tuple(files)) if files else (path.parent, (path.name,))
            yield Input("region features", folder, places, names)


def lmdbs_of(dataset: Tree, slots: Sequence[str]) -> set[Path]:
    """The LMDBs of region features that are read; arguments as for :func:`paths_of`."""
    paths = paths_of(dataset, "features", slots) if dataset.get("use_features") else []
    return {path for path in paths if path.suffix == ".lmdb"}


def paths_of(dataset: Tree, attribute: str, slots: Sequence[str]) -> list[Path]:
    """The paths of annotations, images or features that MMF would join (mmf.datasets.mmf_dataset)."""
    chosen = dataset.get(attribute) or {}
    listed = (chosen.get(slot) or [] for slot in slots)
    flat = (item for items in listed for item in ([items] if isinstance(items, str) else items))
    base = Path(str(dataset.get("data_dir", "")))
    return [base / part for item in flat for part in parts(str(item), base)]


def _vocabularies(zoo: Zoo, config: Tree) -> Iterator[Input]:
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    if text.get("type") == "vocab":
        base = str(config["dataset"].get("data_dir", ""))
        yield from _vocabulary(zoo, (text.get("params") or {}).get("vocab") or {}, base)
    for params in _params_of(config["model"], "embedding"):
        embedding = params.get("embedding_params") or {}
        if embedding.get("type") == "vocab":
            yield from _vocabulary(zoo, embedding.get("params") or {})


def _vocabulary(zoo: Zoo, vocab: Tree, data_dir: str | None = None) -> Iterator[Input]:
    words, vectors = vocab.get("vocab_file"), vocab.get("embedding_name")
    if words:
        path = Path(data_dir or str(vocab.get("data_dir", "")), str(words))
        extras = zoo.places.dataset.root / "extras"
        if path.is_relative_to(extras):
            name = path.relative_to(extras).as_posix()
            yield vocabularies(zoo.places, (name,), zoo.dataset("extras"))
        else:
            yield Input("vocabulary", path.parent, zoo.places, (path.name,))
    if vocab.get("type") != "random" and str(vectors).startswith("glove."):
        hint = "put it there, or let each vocab of the configuration have the type random"
        yield Input("GloVe word vectors", zoo.places.cache_dir, zoo.places, (f"{vectors}.txt",), hint=hint)


def vocabularies(places: MmfPaths, names: Sequence[str], entry: ZooEntry | None = None) -> Unpacked:
    """The extras of the dataset, which hold vocabularies."""
    folder = places.dataset.root / "extras"
    return Unpacked("vocabulary", folder, places, tuple(names), entry=entry, choose=_choose_extras)


def _choose_extras(member: str) -> str | None:
    return f"/{member}".partition("/extras/")[2] or None


def _pretrained(zoo: Zoo, checkpoint: Tree) -> Iterator[Input]:
    key = checkpoint.get("resume_zoo")
    if not key or checkpoint.get("resume_file"):
        return
    local = expand_home(str(key))
    if local.is_file():
        yield Unpacked("pretrained weights", local.parent, zoo.places, (local.name,))
    elif local.is_dir():
        yield Unpacked("pretrained weights", local, zoo.places)
    else:
        yield zoo_weights(zoo, str(key))


def zoo_weights(zoo: Zoo, key: str) -> Unpacked:
    """The weights that a zoo has under a key; of one that it lacks, those that may lie there all the same."""
    title, entry = f"weights {key}", zoo.model(key)
    if entry:
        return Unpacked(title, entry.folder, zoo.places, entry=entry)
    hint = f"checkpoint.resume_zoo={key} is neither a file nor a key of MMF's zoo ({zoo.models})"
    return Unpacked(title, zoo.places.data_dir / "models" / key, zoo.places, hint=hint)


def _encoders(zoo: Zoo, model: Tree) -> Iterator[Input]:
    for params in _params_of(model, "finetune_faster_rcnn_fpn_fc7"):
        base = Path(str(params.get("model_data_dir", zoo.places.data_dir)))
        weights, bias = (base / str(params.get(f"{part}_file", "")) for part in ("weights", "bias"))
        yield _fc7(zoo, weights, bias)
    for params in _params_of(model, "resnet152"):
        if params.get("pretrained", True):
            yield resnet152(torch_home() / "hub" / "checkpoints", zoo.places)


def resnet152(folder: Path, places: MmfPaths) -> UrlFile:
    """The weights that torchvision would download, in a folder of PyTorch Hub's."""
    name = _RESNET152.rpartition("/")[2]
    return UrlFile("ResNet-152", folder, places, (name,), _RESNET152)


def _fc7(zoo: Zoo, weights: Path, bias: Path) -> Input:
    """The detector's last layer, where the configuration has it, or where MMF would have put it."""
    title, names = "detectron fc7", (weights.name, bias.name)
    of_mmf = zoo.model("detectron.vmb_weights")
    configured = weights.is_file() and bias.is_file()
    if of_mmf and not configured and all((of_mmf.folder / name).is_file() for name in names):
        return Unpacked(title, of_mmf.folder, zoo.places, names, entry=of_mmf)
    entry = zoo.model("detectron")
    own = entry if entry and entry.folder == weights.parent == bias.parent else None
    return Unpacked(title, weights.parent, zoo.places, names, entry=own)


def _models(config: Tree, places: MmfPaths) -> Iterator[hub.GivenModel]:
    """The BERTs and CLIPs, with their weights or for the tokenizer alone."""
    model = config["model"]
    # With a text encoder of another type, a model leaves its own BERT unused.
    encoder = (model.get("text_encoder") or {}).get("type", "transformer")
    berts = [model.get("bert_model_name")] if encoder == "transformer" else []
    berts += [params.get("bert_model_name") for params in _params_of(model, "transformer")]
    berts += [model.get("transformer_base")]
    clip = model.get("clip_model_name")
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    params = text.get("params") or {}
    tokenizers = [(params.get("tokenizer_config") or {}).get("type"), params.get("from_pretrained")]
    for name in dict.fromkeys(str(name) for name in (*berts, clip, *tokenizers) if name):
        if name == clip:
            yield hub.model(name, places, weights=hub.SAFETENSORS, kind="CLIP")
        else:
            yield hub.model(name, places, weights=hub.WEIGHTS if name in berts else ())


def asks_hub(config: Tree, places: MmfPaths) -> bool:
    """Whether a run whose inputs are all there may read more of the Hugging Face Hub than these files."""
    models = [hub.snapshot_of(each.source) for each in _models(config, places) if each.source]
    unlisted = config["env"].get("user_dir") or list(_params_of(config["model"], "vit"))
    return bool(unlisted) or not models or not all(model and hub.is_plain(model) for model in models)


def _params_of(tree: Any, kind: str) -> Iterator[Tree]:
    """The ``params`` of every mapping below ``tree`` with this ``type``, as MMF describes its modules."""
    if isinstance(tree, Mapping) and tree.get("type") == kind:
        yield dict(tree.get("params") or {})
    if isinstance(tree, (Mapping, list)):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _params_of(value, kind)


def inputs_on_disk(places: MmfPaths) -> list[Input]:
    """What lies in the data folder, and what was read in the caches of others."""
    folders: set[Path] = set()
    for here, below, names in os.walk(places.data_dir):
        below[:] = [name for name in below if not name.startswith(".mmfw-")]
        if (
            MANIFEST_NAME in names
            or Path(here) == places.dataset.features
            or is_install_incomplete(Path(here))
        ):
            folders.add(Path(here))
    found = [each for folder in sorted(folders - {places.dataset.root}) for each in _listed(folder, places)]
    elsewhere = (path for path in map(Path, read_ledger(places.cache_dir).files) if _is_here(path, places))
    # Where a whole folder is gone, its owner has removed it.
    shared = (each for each in _shared(elsewhere, places) if any(path.is_file() for path in each.files()))
    return [*found, *shared]


def _is_here(path: Path, places: MmfPaths) -> bool:
    """Whether a file lies in no other data folder; all share the cache folder, which lists what was read."""
    datasets = ((parent / "datasets" / "hateful_memes").is_dir() for parent in path.parents)
    return path.is_relative_to(places.data_dir) or not any(datasets)


def _listed(folder: Path, places: MmfPaths) -> Iterator[Input]:
    """The files that the folder's manifest lists, and region features that have none."""
    data = "detectron.lmdb/data.mdb"
    names: tuple[str, ...] = (data,) if (folder / data).is_file() else ()
    manifest = None
    try:
        if manifest := Manifest.load(folder) or Manifest.load(staging_folder(folder)):
            names = tuple(manifest.files)
    except DataError:  # which verifying them tells
        known = load_manifest_notes(folder)
        names = names or tuple(known.stamps if known else ())
    if folder == places.dataset.features or (manifest and manifest.hash_origin == "built"):
        title = "region features" if folder == places.dataset.features else folder.name
        for name in names:
            features = RegionFeatures(title, folder, places, (name,))
            # Files without a list are taken as they are only where their archive is gone.
            yield features if manifest else features.with_source()
    elif folder == places.dataset.root / "extras":
        yield vocabularies(places, names)
    else:
        yield Unpacked(folder.relative_to(places.data_dir).as_posix(), folder, places, names)


def _shared(paths: Iterable[Path], places: MmfPaths) -> Iterator[Input]:
    """What was read in folders of others, by the folder."""
    by_folder: dict[Path, set[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, set()).add(path.name)
    for folder, names in by_folder.items():
        if (model := hub.name_of(folder)) is not None:
            weights = hub.WEIGHTS if names & set(hub.WEIGHTS) else ()
            yield hub.model(model, places, weights=weights, kind="CLIP" if "clip" in model else "BERT")
            continue
        resnet = resnet152(folder, places)
        if names & set(resnet.names):
            yield resnet
        if others := names - set(resnet.names):
            yield Input(str(folder), folder, places, tuple(sorted(others)))
