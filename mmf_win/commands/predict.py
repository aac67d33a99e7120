"""``mmfw predict``."""

from __future__ import annotations

from pathlib import Path

import click

from mmf_win.commands import options
from mmf_win.console import print_json, say
from mmf_win.errors import DatasetError


@click.command(
    epilog="""\b
Examples:
  mmfw predict                              the newest run's best checkpoint, on its test split
  mmfw predict mmbt_grid                    the newest run of that name
  mmfw predict mmbt_grid --split dev_seen --checkpoint last
  mmfw predict --checkpoint model.ckpt"""
)
@click.argument("words", nargs=-1, metavar="[RUN] [KEY=VALUE ...]")
@click.option(
    "--checkpoint", default="best", show_default=True, metavar="best|last|PATH", help="The weights to use."
)
@click.option(
    "--split", metavar="SPLIT", help="The annotation file's name, such as test_seen.  [default: the run's]"
)
@click.option(
    "--batch-size", type=click.IntRange(1), metavar="N", help="Memes a batch.  [default: the run's]"
)
@options.data_dir
@options.save_dir
@options.as_json
def command(
    words: tuple[str, ...],
    checkpoint: str,
    split: str | None,
    batch_size: int | None,
    data_dir: Path | None,
    save_dir: Path | None,
    as_json: bool,
) -> None:
    """Predict a split with a trained run.

    Writes id,proba,label in the order of the annotations, with exactly their ids, and scores the result where
    the split has labels. RUN is a run's id, its name or its folder; without one it is the newest.
    """
    from mmf_win.dataset.annotations import splits_on_disk
    from mmf_win.files import read_json
    from mmf_win.paths import Places
    from mmf_win.runs import checkpoints, history, launch
    from mmf_win.runs.overrides import split_words

    wanted, overrides = split_words(words)
    own = None if wanted else history.owner(Path(checkpoint).expanduser().absolute())
    run = own or history.find(Places.resolve(data_dir, save_dir).save_dir, wanted)
    request = run.request()
    places = Places.resolve(data_dir or Path(request.data_dir), save_dir)
    split = split or request.splits["test"]
    if not places.dataset.split(split).is_file():
        there = ", ".join(splits_on_disk(places.dataset)) or "none"
        raise DatasetError(
            f"{places.dataset.split(split)}: there is no such split", hint=f"there are: {there}"
        )
    weights = checkpoints.announced(checkpoints.choose(run, checkpoint))
    say(f"predicting {split} with {weights.name} of run {run.id}")
    csv = launch.predict(
        run,
        places,
        checkpoint=weights,
        split=split,
        overrides=overrides,
        batch_size=batch_size,
    )
    metrics = read_json(csv.with_suffix(".metrics.json"))
    if as_json:
        print_json({"csv": str(csv), "run": run.id, "split": split, "checkpoint": str(weights), **metrics})
        return
    if metrics["auroc"] is not None:
        scores = f"AUROC {metrics['auroc']:.4f}, accuracy {metrics['accuracy']:.4f}"
        say(f"{scores} on {metrics['rows']} rows of {split}")
    elif metrics["accuracy"] is not None:
        say(f"accuracy {metrics['accuracy']:.4f} on {split}; AUROC needs labels of both classes")
    else:
        say(f"{split} has no labels, so there is nothing to score")
    print(csv)
