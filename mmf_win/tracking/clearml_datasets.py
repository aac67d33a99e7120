"""ClearML datasets: converted datasets, which keep their folder layout there, and unconverted ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmf_win.console import summarize_list
from mmf_win.dataset.convert import load_dataset_manifest
from mmf_win.errors import DatasetError, UsageError
from mmf_win.integrity.manifest import Manifest, manifest_files
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import DatasetPaths
from mmf_win.tracking.clearml_tracker import ClearMLTracker
from mmf_win.tracking.tracker import OFFLINE


def download_dataset(id_: str) -> Path:
    """Return a local copy of a ClearML dataset; a converted one is verified.

    Args:
        id_: ID of the ClearML dataset.

    Returns:
        Folder of the copy; for a converted dataset, it is a data folder.

    Raises:
        UsageError: There is no dataset with this ID, or ClearML is offline.
        DatasetError: A file is damaged.
        MmfEnvironmentError: clearml is missing, or its server does not answer.
    """
    with open_connection() as tracker:
        query = {"id": [id_], "system_tags": ["dataset"], "search_hidden": True}
        if not tracker.call_api("tasks.get_all", **query)["tasks"]:
            hint = f"check the ID, and the server in {tracker.address_variable}"
            raise UsageError(f"no ClearML dataset with the ID {id_}", hint=hint)
        from clearml import Dataset

        copy = Path(Dataset.get(dataset_id=id_, silence_alias_warnings=True).get_local_copy())
    _require_intact(copy, f"delete {copy} to download it again, or register the dataset again")
    return copy


def register_dataset(name: str, paths: DatasetPaths) -> str:
    """Create a ClearML dataset from the converted dataset.

    Args:
        name: Name of the ClearML dataset.
        paths: Folders of the converted dataset.

    Returns:
        ID of the ClearML dataset.

    Raises:
        DatasetError: There is no converted dataset, or it is damaged.
        MmfEnvironmentError: clearml is missing, or its server does not answer.
    """
    if _require_intact(paths.data_dir, "run `mmfw repair dataset`") is None:
        raise DatasetError(f"{paths.root}: no converted dataset", hint="run `mmfw convert`")
    with open_connection() as tracker:
        tracker.call_api("debug.ping")  # the calls below would retry forever
        from clearml import Dataset

        dataset = Dataset.create(dataset_name=name, dataset_project=tracker.project)
        for part in (paths.annotations, paths.images, *filter(Path.exists, manifest_files(paths.root))):
            dataset.add_files(part, local_base_folder=paths.data_dir)
        dataset.upload()
        dataset.finalize()
        return str(dataset.id)


@contextmanager
def open_connection() -> Iterator[ClearMLTracker]:
    """Connect to ClearML for the duration of the block.

    Yields:
        The connection.

    Raises:
        UsageError: ClearML is offline, or its settings are incomplete.
    """
    tracker = ClearMLTracker()
    if tracker.server == OFFLINE:
        raise UsageError("ClearML's offline mode has no datasets", hint="unset CLEARML_OFFLINE_MODE")
    tracker.require_usable()
    with tracker.translate_errors():
        yield tracker


def _require_intact(data_dir: Path, hint: str) -> Manifest | None:
    paths = DatasetPaths.from_data_dir(data_dir)
    manifest = load_dataset_manifest(paths)
    if manifest and (damaged := find_damage(manifest, full=True, title="Verifying the dataset")):
        raise DatasetError(f"{paths.root}: damaged: {summarize_list([*map(str, damaged)])}", hint=hint)
    return manifest
