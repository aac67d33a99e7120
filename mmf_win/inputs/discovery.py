"""Discovery of input files: files that a configuration of MMF reads, and files that mmfw fetched or read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmf_win.errors import DataError
from mmf_win.inputs import hub
from mmf_win.inputs.archive_input import ArchiveInput, RegionFeaturesInput
from mmf_win.inputs.input_files import InputFiles, UrlInput
from mmf_win.inputs.known_hashes import load_known_hashes
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, load_manifest_notes
from mmf_win.paths import MmfPaths, expand_home, torch_home
from mmf_win.unpacking.staging import is_install_incomplete, staging_folder
from mmf_win.upstream.config import Settings
from mmf_win.upstream.overrides import split_paths
from mmf_win.upstream.zoo import Zoo, ZooEntry

# Since torchvision 0.13, the URL of the weights that MMF requests with pretrained=True.
_RESNET152_URL = "https://download.pytorch.org/models/resnet152-394f9c45.pth"


def list_config_inputs(
    root: Path, mmf_paths: MmfPaths, config: Settings, slots: Sequence[str] = ("train", "val")
) -> list[InputFiles]:
    """List the files that a run reads, except annotations, images and the run's own checkpoints.

    Args:
        root: Folder that contains the package ``mmf``.
        mmf_paths: Folders of MMF.
        config: Result of :func:`mmf_win.upstream.config.resolve_config`.
        slots: MMF's splits that are read: ``train``, ``val`` or ``test``.

    Returns:
        Each input once. Errors are those of :class:`Zoo`.
    """
    zoo = Zoo(root, mmf_paths, config["env"]["dataset_zoo"], config["env"]["model_zoo"])
    inputs = [
        *_feature_inputs(zoo, config["dataset"], slots),
        *_vocabulary_inputs(zoo, config),
        *_pretrained_inputs(zoo, config["checkpoint"]),
        *_encoder_inputs(zoo, config["model"]),
        *_model_inputs(config, mmf_paths),
    ]
    return list(dict.fromkeys(inputs))


def _feature_inputs(zoo: Zoo, dataset: Settings, slots: Sequence[str]) -> Iterator[InputFiles]:
    mmf_paths = zoo.mmf_paths
    for path in dict.fromkeys(list_dataset_paths(dataset, "features", slots) if dataset.get("use_features") else []):
        if path.suffix == ".lmdb":
            is_default_folder = path.parent == mmf_paths.dataset.features
            entry = zoo.dataset_entry("features") if is_default_folder else None
            data_name = f"{path.name}/data.mdb"
            yield RegionFeaturesInput("region features", path.parent, mmf_paths, (data_name,), entry=entry)
        else:
            files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.npy"))
            folder, names = (path, tuple(files)) if files else (path.parent, (path.name,))
            yield InputFiles("region features", folder, mmf_paths, names)


def list_feature_lmdbs(dataset: Settings, slots: Sequence[str]) -> set[Path]:
    """Return the LMDBs of region features that are read; arguments as for :func:`list_dataset_paths`."""
    paths = list_dataset_paths(dataset, "features", slots) if dataset.get("use_features") else []
    return {path for path in paths if path.suffix == ".lmdb"}


def list_dataset_paths(dataset: Settings, attribute: str, slots: Sequence[str]) -> list[Path]:
    """Return the paths of annotations, images or features, joined as in mmf.datasets.mmf_dataset."""
    values_by_slot = dataset.get(attribute) or {}
    values = (values_by_slot.get(slot) or [] for slot in slots)
    texts = (text for items in values for text in ([items] if isinstance(items, str) else items))
    base = Path(str(dataset.get("data_dir", "")))
    return [base / part for text in texts for part in split_paths(str(text), base)]


def _vocabulary_inputs(zoo: Zoo, config: Settings) -> Iterator[InputFiles]:
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    if text.get("type") == "vocab":
        base = str(config["dataset"].get("data_dir", ""))
        yield from _inputs_of_vocab(zoo, (text.get("params") or {}).get("vocab") or {}, base)
    for params in _iter_module_params(config["model"], "embedding"):
        embedding = params.get("embedding_params") or {}
        if embedding.get("type") == "vocab":
            yield from _inputs_of_vocab(zoo, embedding.get("params") or {})


def _inputs_of_vocab(zoo: Zoo, vocab: Settings, data_dir: str | None = None) -> Iterator[InputFiles]:
    vocab_file, vectors = vocab.get("vocab_file"), vocab.get("embedding_name")
    if vocab_file:
        path = Path(data_dir or str(vocab.get("data_dir", "")), str(vocab_file))
        extras = zoo.mmf_paths.dataset.root / "extras"
        if path.is_relative_to(extras):
            name = path.relative_to(extras).as_posix()
            yield extras_input(zoo.mmf_paths, (name,), zoo.dataset_entry("extras"))
        else:
            yield InputFiles("vocabulary", path.parent, zoo.mmf_paths, (path.name,))
    if vocab.get("type") != "random" and str(vectors).startswith("glove."):
        hint = "put the file there, or set the type of each vocab in the configuration to random"
        yield InputFiles("GloVe word vectors", zoo.mmf_paths.cache_dir, zoo.mmf_paths, (f"{vectors}.txt",), hint=hint)


def extras_input(mmf_paths: MmfPaths, names: Sequence[str], entry: ZooEntry | None = None) -> ArchiveInput:
    """Return the dataset's extras, which contain vocabularies."""
    folder = mmf_paths.dataset.root / "extras"
    return ArchiveInput("vocabulary", folder, mmf_paths, tuple(names), entry=entry, choose=_choose_extras)


def _choose_extras(member: str) -> str | None:
    return f"/{member}".partition("/extras/")[2] or None


def _pretrained_inputs(zoo: Zoo, checkpoint: Settings) -> Iterator[InputFiles]:
    key = checkpoint.get("resume_zoo")
    if not key or checkpoint.get("resume_file"):
        return
    local = expand_home(str(key))
    if local.is_file():
        yield ArchiveInput("pretrained weights", local.parent, zoo.mmf_paths, (local.name,))
    elif local.is_dir():
        yield ArchiveInput("pretrained weights", local, zoo.mmf_paths)
    else:
        yield zoo_weights_input(zoo, str(key))


def zoo_weights_input(zoo: Zoo, key: str) -> ArchiveInput:
    """Return the weights of a zoo key; for an unknown key, weights that may be in its folder anyway."""
    title, entry = f"weights {key}", zoo.model_entry(key)
    if entry:
        return ArchiveInput(title, entry.folder, zoo.mmf_paths, entry=entry)
    hint = f"correct checkpoint.resume_zoo={key}, which is neither a file nor a key of MMF's zoo ({zoo.models_file})"
    return ArchiveInput(title, zoo.mmf_paths.data_dir / "models" / key, zoo.mmf_paths, hint=hint)


def _encoder_inputs(zoo: Zoo, model: Settings) -> Iterator[InputFiles]:
    for params in _iter_module_params(model, "finetune_faster_rcnn_fpn_fc7"):
        base = Path(str(params.get("model_data_dir", zoo.mmf_paths.data_dir)))
        weights, bias = (base / str(params.get(f"{part}_file", "")) for part in ("weights", "bias"))
        yield _fc7_input(zoo, weights, bias)
    for params in _iter_module_params(model, "resnet152"):
        if params.get("pretrained", True):
            yield resnet152_input(torch_home() / "hub" / "checkpoints", zoo.mmf_paths)


def resnet152_input(folder: Path, mmf_paths: MmfPaths) -> UrlInput:
    """Return the weights that torchvision downloads into a folder of PyTorch Hub."""
    name = _RESNET152_URL.rpartition("/")[2]
    return UrlInput("ResNet-152", folder, mmf_paths, (name,), _RESNET152_URL)


def _fc7_input(zoo: Zoo, weights: Path, bias: Path) -> InputFiles:
    """Return the last layer of the detector, from the configured paths or from where MMF unpacks it."""
    title, names = "detectron fc7", (weights.name, bias.name)
    vmb_entry = zoo.model_entry("detectron.vmb_weights")
    configured = weights.is_file() and bias.is_file()
    if vmb_entry and not configured and all((vmb_entry.folder / name).is_file() for name in names):
        return ArchiveInput(title, vmb_entry.folder, zoo.mmf_paths, names, entry=vmb_entry)
    entry = zoo.model_entry("detectron")
    matching_entry = entry if entry and entry.folder == weights.parent == bias.parent else None
    return ArchiveInput(title, weights.parent, zoo.mmf_paths, names, entry=matching_entry)


def _model_inputs(config: Settings, mmf_paths: MmfPaths) -> Iterator[hub.LocalModelInput]:
    """Yield the BERTs and CLIPs, with weights or with their tokenizers only."""
    model = config["model"]
    # A model does not use its own BERT if its text encoder has another type.
    encoder = (model.get("text_encoder") or {}).get("type", "transformer")
    berts = [model.get("bert_model_name")] if encoder == "transformer" else []
    berts += [params.get("bert_model_name") for params in _iter_module_params(model, "transformer")]
    berts += [model.get("transformer_base")]
    clip = model.get("clip_model_name")
    text = (config["dataset"].get("processors") or {}).get("text_processor") or {}
    params = text.get("params") or {}
    tokenizers = [(params.get("tokenizer_config") or {}).get("type"), params.get("from_pretrained")]
    for name in dict.fromkeys(str(name) for name in (*berts, clip, *tokenizers) if name):
        if name == clip:
            yield hub.make_model_input(name, mmf_paths, weights=hub.SAFETENSORS, kind="CLIP")
        else:
            yield hub.make_model_input(name, mmf_paths, weights=hub.WEIGHTS if name in berts else ())


def may_query_hub(config: Settings, mmf_paths: MmfPaths) -> bool:
    """Return whether a run with complete inputs may request other files from the Hugging Face Hub."""
    snapshots = [hub.find_snapshot(item.source) for item in _model_inputs(config, mmf_paths) if item.source]
    unlisted = config["env"].get("user_dir") or list(_iter_module_params(config["model"], "vit"))
    return bool(unlisted) or not snapshots or not all(path and hub.is_known_model_type(path) for path in snapshots)


def _iter_module_params(tree: Any, module_type: str) -> Iterator[Settings]:
    """Yield the ``params`` of every mapping in ``tree`` with this ``type``, MMF's format for modules."""
    if isinstance(tree, Mapping) and tree.get("type") == module_type:
        yield dict(tree.get("params") or {})
    if isinstance(tree, (Mapping, list)):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _iter_module_params(value, module_type)


def list_existing_inputs(mmf_paths: MmfPaths) -> list[InputFiles]:
    """List the inputs in the data folder and those read from caches of other programs."""
    folders: set[Path] = set()
    for folder_name, subfolders, names in os.walk(mmf_paths.data_dir):
        subfolders[:] = [name for name in subfolders if not name.startswith(".mmfw-")]
        folder = Path(folder_name)
        if MANIFEST_NAME in names or folder == mmf_paths.dataset.features or is_install_incomplete(folder):
            folders.add(folder)
    folders.discard(mmf_paths.dataset.root)
    inputs = [item for folder in sorted(folders) for item in _folder_inputs(folder, mmf_paths)]
    paths = map(Path, load_known_hashes(mmf_paths.cache_dir).files)
    cached_paths = (path for path in paths if _is_in_this_data_dir(path, mmf_paths))
    shared_inputs = _shared_cache_inputs(cached_paths, mmf_paths)
    # A missing folder was removed by its owner.
    return [*inputs, *(item for item in shared_inputs if any(map(Path.is_file, item.files())))]


def _is_in_this_data_dir(path: Path, mmf_paths: MmfPaths) -> bool:
    """Return whether a file is in no other data folder.

    All data folders share the cache folder, in which the list of known hashes is stored.
    """
    datasets = ((parent / "datasets" / "hateful_memes").is_dir() for parent in path.parents)
    return path.is_relative_to(mmf_paths.data_dir) or not any(datasets)


def _folder_inputs(folder: Path, mmf_paths: MmfPaths) -> Iterator[InputFiles]:
    """Yield the files in the folder's manifest, and region features without a manifest."""
    lmdb_data = "detectron.lmdb/data.mdb"
    names: tuple[str, ...] = (lmdb_data,) if (folder / lmdb_data).is_file() else ()
    manifest = None
    try:
        if manifest := Manifest.load(folder) or Manifest.load(staging_folder(folder)):
            names = tuple(manifest.files)
    except DataError:  # reported when the files are verified
        notes = load_manifest_notes(folder)
        names = names or tuple(notes.stamps if notes else ())
    if folder == mmf_paths.dataset.features or (manifest and manifest.hash_origin == "built"):
        title = "region features" if folder == mmf_paths.dataset.features else folder.name
        for name in names:
            features = RegionFeaturesInput(title, folder, mmf_paths, (name,))
            # Files without a manifest are accepted only if their archive is gone.
            yield features if manifest else features.with_source()
    elif folder == mmf_paths.dataset.root / "extras":
        yield extras_input(mmf_paths, names)
    else:
        yield ArchiveInput(folder.relative_to(mmf_paths.data_dir).as_posix(), folder, mmf_paths, names)


def _shared_cache_inputs(paths: Iterable[Path], mmf_paths: MmfPaths) -> Iterator[InputFiles]:
    """Yield files in folders of other programs, grouped by folder."""
    by_folder: dict[Path, set[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, set()).add(path.name)
    for folder, names in by_folder.items():
        if (model := hub.name_from_snapshot(folder)) is not None:
            weights = hub.WEIGHTS if names & set(hub.WEIGHTS) else ()
            yield hub.make_model_input(model, mmf_paths, weights=weights, kind="CLIP" if "clip" in model else "BERT")
            continue
        resnet = resnet152_input(folder, mmf_paths)
        if names & set(resnet.names):
            yield resnet
        if other_names := names - set(resnet.names):
            yield InputFiles(str(folder), folder, mmf_paths, tuple(sorted(other_names)))
