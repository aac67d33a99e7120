"""Data sets in ClearML: the converted dataset, whose files keep their places there, or an unconverted one."""

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
    """A local copy of a data set: if it is a converted one, a data folder in which each file is intact.

    Raises:
        UsageError: there is none of this id.
        DatasetError: a file is damaged.
        MmfError: clearml is missing, or its server does not answer.
    """
    with open_connection() as to:
        if not to.call_api("tasks.get_all", id=[id_], system_tags=["dataset"], search_hidden=True)["tasks"]:
            raise UsageError(f"{id_}: ClearML has no data set of this id", hint=f"see {to.address_variable}")
        from clearml import Dataset

        copy = Path(Dataset.get(dataset_id=id_, silence_alias_warnings=True).get_local_copy())
    _require_intact(copy, f"delete {copy}, so that it is got again; else register it again")
    return copy


def register_dataset(name: str, paths: DatasetPaths) -> str:
    """Make a data set of the converted dataset, and return its id.

    Raises:
        DatasetError: none was converted, or it is damaged.
        MmfError: clearml is missing, or its server does not answer.
    """
    if _require_intact(paths.data_dir, "`mmfw repair dataset` repairs it") is None:
        raise DatasetError(f"{paths.root}: no dataset was converted", hint="`mmfw convert` does that")
    with open_connection() as to:
        to.call_api("debug.ping")  # for what follows tries for ever
        from clearml import Dataset

        made = Dataset.create(dataset_name=name, dataset_project=to.project)
        for part in (paths.annotations, paths.images, *filter(Path.exists, manifest_files(paths.root))):
            made.add_files(part, local_base_folder=paths.data_dir)
        made.upload()
        made.finalize()
        return str(made.id)


@contextmanager
def open_connection() -> Iterator[ClearMLTracker]:
    """A connection. Raises UsageError in the offline mode, and as :meth:`Tracker.asked`."""
    to = ClearMLTracker()
    if to.server == OFFLINE:
        raise UsageError("ClearML's offline mode has no data sets", hint="unset CLEARML_OFFLINE_MODE")
    to.require_usable()
    with to.translate_errors():
        yield to


def _require_intact(data_dir: Path, repair: str) -> Manifest | None:
    paths = DatasetPaths.from_data_dir(data_dir)
    manifest = load_dataset_manifest(paths)
    if manifest and (wrong := find_damage(manifest, full=True, title="Verifying the dataset")):
        raise DatasetError(f"{paths.root}: damaged: {summarize_list([*map(str, wrong)])}", hint=repair)
    return manifest
