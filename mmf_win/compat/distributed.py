"""Patches for several processes that train together, in a group and with an order of the rows from us."""

from __future__ import annotations

from mmf_win.compat.patch import RC10, Edit, Patch, edit

_GROUP = "mmf.utils.distributed"
_LOADERS = "mmf.datasets.multi_dataset_loader"
_IS_THERE = "torch.distributed.is_initialized()"

PATCHES = (
    Patch(
        name="ranks",
        problem="get_rank, get_world_size, synchronize: take a group without NCCL for none: all ranks write",
        library="torch without NCCL",
        edits=edit(_GROUP, "dist.is_nccl_available()", "dist.is_available()"),
    ),
    Patch(
        name="scores-of-ranks",
        problem="reduce_dict: the scores of a validation are means over shards, with rows twice",
        # Every rank has scored all rows, without gradients.
        edits=edit(
            _GROUP,
            "if world_size < 2:\n        return dictionary",
            "if world_size < 2 or not torch.is_grad_enabled():\n        return dictionary",
        ),
    ),
    Patch(
        name="rows-of-ranks",
        problem="build_dataloader: DistributedSampler ignores training.seed, and takes some rows twice",
        edits=(
            Edit("mmf.utils.build", f"if {_IS_THERE}:", "if False:"),
            Edit("mmf.utils.build", "if is_dist_initialized():", "if False:"),
            Edit(_LOADERS, f"if {_IS_THERE}:", "if False:"),  # which gives that sampler its seed
        ),
    ),
    Patch(
        name="early-stop-of-ranks",
        problem="EarlyStopping: the first rank alone restores the best checkpoint, and waits for the others",
        # At the end of training all do.
        edits=edit(
            "mmf.utils.early_stopping",
            "self.checkpoint.restore()",
            "torch.distributed.is_initialized() or self.checkpoint.restore()",
        ),
    ),
    Patch(
        name="epochs-of-ranks",
        problem="BaseTrainer.train: each pass counts as one epoch for each rank",
        mmf=RC10,
        edits=edit("mmf.trainers.base_trainer", "self.current_epoch += get_world_size() - 1", "pass"),
    ),
)
