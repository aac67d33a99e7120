"""Patches for distributed training with mmfw's process groups and row order."""

from __future__ import annotations

from mmf_win.compat.patch import RC10, Edit, Patch, single_edit

_DISTRIBUTED_UTILS = "mmf.utils.distributed"
_MULTI_DATASET_LOADER = "mmf.datasets.multi_dataset_loader"
_IS_INITIALIZED = "torch.distributed.is_initialized()"

PATCHES = (
    Patch(
        name="ranks",
        problem="get_rank, get_world_size, synchronize: ignore a group without NCCL, so all ranks write",
        library="torch without NCCL",
        edits=single_edit(_DISTRIBUTED_UTILS, "dist.is_nccl_available()", "dist.is_available()"),
    ),
    Patch(
        name="scores-of-ranks",
        problem="reduce_dict: validation scores are means over shards with duplicate rows",
        # With mmfw, every rank scores all rows, without gradients.
        edits=single_edit(
            _DISTRIBUTED_UTILS,
            "if world_size < 2:\n        return dictionary",
            "if world_size < 2 or not torch.is_grad_enabled():\n        return dictionary",
        ),
    ),
    Patch(
        name="rows-of-ranks",
        problem="build_dataloader: DistributedSampler ignores training.seed and uses some rows twice",
        edits=(
            Edit("mmf.utils.build", f"if {_IS_INITIALIZED}:", "if False:"),
            Edit("mmf.utils.build", "if is_dist_initialized():", "if False:"),
            # This statement sets the sampler's seed.
            Edit(_MULTI_DATASET_LOADER, f"if {_IS_INITIALIZED}:", "if False:"),
        ),
    ),
    Patch(
        name="early-stop-of-ranks",
        problem="EarlyStopping: only rank 0 restores the best checkpoint, and it waits for the others",
        # All ranks restore it at the end of training.
        edits=single_edit(
            "mmf.utils.early_stopping",
            "self.checkpoint.restore()",
            "torch.distributed.is_initialized() or self.checkpoint.restore()",
        ),
    ),
    Patch(
        name="epochs-of-ranks",
        problem="BaseTrainer.train: each epoch is counted once per rank",
        mmf_versions=RC10,
        edits=single_edit("mmf.trainers.base_trainer", "self.current_epoch += get_world_size() - 1", "pass"),
    ),
)
