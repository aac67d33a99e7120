"""Patches for several processes that train together, in a group and with an order of the rows from us."""

from __future__ import annotations

from mmf_win.compat.patch import RC10, Edit, Patch, single_edit

_DISTRIBUTED_UTILS = "mmf.utils.distributed"
_MULTI_DATASET_LOADER = "mmf.datasets.multi_dataset_loader"
_IS_INITIALIZED = "torch.distributed.is_initialized()"

PATCHES = (
    Patch(
        name="ranks",
        problem="get_rank, get_world_size, synchronize: take a group without NCCL for none: all ranks write",
        library="torch without NCCL",
        edits=single_edit(_DISTRIBUTED_UTILS, "dist.is_nccl_available()", "dist.is_available()"),
    ),
    Patch(
        name="scores-of-ranks",
        problem="reduce_dict: the scores of a validation are means over shards, with rows twice",
        # Every rank has scored all rows, without gradients.
        edits=single_edit(
            _DISTRIBUTED_UTILS,
            "if world_size < 2:\n        return dictionary",
            "if world_size < 2 or not torch.is_grad_enabled():\n        return dictionary",
        ),
    ),
    Patch(
        name="rows-of-ranks",
        problem="build_dataloader: DistributedSampler ignores training.seed, and takes some rows twice",
        edits=(
            Edit("mmf.utils.build", f"if {_IS_INITIALIZED}:", "if False:"),
            Edit("mmf.utils.build", "if is_dist_initialized():", "if False:"),
            Edit(
                _MULTI_DATASET_LOADER, f"if {_IS_INITIALIZED}:", "if False:"
            ),  # which gives that sampler its seed
        ),
    ),
    Patch(
        name="early-stop-of-ranks",
        problem="EarlyStopping: the first rank alone restores the best checkpoint, and waits for the others",
        # At the end of training all do.
        edits=single_edit(
            "mmf.utils.early_stopping",
            "self.checkpoint.restore()",
            "torch.distributed.is_initialized() or self.checkpoint.restore()",
        ),
    ),
    Patch(
        name="epochs-of-ranks",
        problem="BaseTrainer.train: each pass counts as one epoch for each rank",
        mmf_versions=RC10,
        edits=single_edit("mmf.trainers.base_trainer", "self.current_epoch += get_world_size() - 1", "pass"),
    ),
)
