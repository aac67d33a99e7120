"""What a minute finds in a model and its rows before training; docs/checking.md explains each check."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch
from torch import nn

from mmf_win.console import summarize_list
from mmf_win.protocol.check_result import CheckResult, Verdict
from mmf_win.worker.hooks import batch_splitting
from mmf_win.worker.hooks.first_loss import describe_odd_loss, has_fresh_head, total_loss
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.random_state import preserve_state
from mmf_win.worker.outcome import ChecksFinished, StopRequested
from mmf_win.worker.prediction_progress import get_single_loader

_MAX_CHECK_SECONDS = 60.0  # seconds that a check may take
_MAX_BATCHES, _MAX_ROWS = 8, 8  # in which both labels are looked for
_OVERFIT_UPDATES = 40  # in which the rows have to be learnt
_TRIAL_LEARNING_RATES = (1e-3, 1e-2)
_MAX_LEARNED_LOSS = 0.2  # the loss; with a softmax before cross-entropy, it ends at ln(1 + 1/e) = 0.3133
_SCORE_TOLERANCE = 5e-3  # of the largest score: batches of other sizes are calculated by other kernels
_WARNING_SHARE = 0.1  # the share of texts that are cut, or of tokens that are not known
_MODALITIES = {
    "text": re.compile("text|input_|segment|lm_label|tokens|length"),
    "image": re.compile("image|img|bbox"),
}
_NEVER_TRAINED = {"vilbert": re.compile(r"\.biOutput\.q_dense[12]\.")}  # MMF makes them, and never uses them


class CheckContext:
    """What is checked: the model and optimizer of a trainer, and some rows that have both labels.

    Attributes:
        seconds: what the last forward pass took.
        shape: of its scores; None before the first.
    """

    def __init__(self, trainer: Any, limit: int, *, is_head_fresh: bool) -> None:
        self.model, self.optimizer, self.is_head_fresh = trainer.model, trainer.optimizer, is_head_fresh
        self.model_name, self.forward_seconds = str(trainer.config.model), 0.0
        self.dataset = get_single_loader(trainer.train_loader).dataset
        for _, batch in zip(range(_MAX_BATCHES), trainer.train_loader, strict=False):
            if batch["targets"][:_MAX_ROWS].unique().numel() > 1:
                break
        few = slice(min(_MAX_ROWS, limit))
        self.batch = batch_splitting.select_rows(batch, few, batch.get_batch_size()).to(trainer.device)
        self.row_count: int = self.batch.get_batch_size()
        self.meme_ids = [str(int(each)) for each in self.batch["id"]]
        self.scores_shape: tuple[int, ...] | None = None
        self.model.register_forward_hook(self._record_scores_shape)  # its losses come later, and may fail

    def make_result(self, verdict: Verdict, text: str, advice: str | None = None) -> CheckResult:
        """A remark on these rows; whoever runs the check names it."""
        return CheckResult(verdict, "", text, advice, self.meme_ids)

    def _record_scores_shape(self, _module: nn.Module, _args: Any, output: Mapping[str, Any]) -> None:
        self.scores_shape = tuple(output["scores"].shape)

    def shape_problem(self) -> str:
        """What is wrong with the shape of the scores; nothing where it is right, or not known yet."""
        wanted = (self.row_count, 2)
        return f"the scores have the shape {self.scores_shape}, not {wanted}" * (
            self.scores_shape not in (None, wanted)
        )

    def select_rows(self, first: int = 0, end: int | None = None) -> Any:
        """Some of the rows, in a new list, since models add to the one that they get."""
        return batch_splitting.select_rows(self.batch, slice(first, end), self.row_count)

    def run_model(self, batch: Any, seed: int = 0) -> Mapping[str, Any]:
        """What the model makes of a batch; chance is the same for the same seed."""
        torch.manual_seed(seed)
        begun = time.monotonic()
        output: Mapping[str, Any] = self.model(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.forward_seconds = time.monotonic() - begun
        return output

    @torch.no_grad()
    def compute_scores(self, batch: Any, seed: int = 0) -> torch.Tensor:
        """Those of a batch, on the CPU."""
        return torch.as_tensor(self.run_model(batch, seed)["scores"]).float().cpu()


def run(observer: Observer, trainer: Any, limit: int) -> NoReturn:
    """Write an event for each thing that is found with at most ``limit`` rows, and end the attempt."""
    subject = CheckContext(
        trainer, limit, is_head_fresh=has_fresh_head(trainer.model, observer.loaded_tensors)
    )
    for name, (check, passes) in CHECKS.items():
        begun, failed = time.monotonic(), False
        try:
            if (seconds := passes * subject.forward_seconds) > _MAX_CHECK_SECONDS:
                found = [subject.make_result("note", f"skipped: it takes about {seconds:.0f} s here")]
            else:
                found = list(check(subject))
        except (StopRequested, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            traceback.print_exc()
            text, failed = f"{type(error).__name__}: {' '.join(str(error).split())}", True
            found = [
                subject.make_result(
                    "error", text, subject.shape_problem() or "the model cannot be trained so"
                )
            ]
        seconds = round(time.monotonic() - begun, 2)
        for each in found:
            observer.write_event("checked", **asdict(replace(each, check=name, seconds=seconds)))
        if failed:
            break
        observer.heartbeat()
    raise ChecksFinished


def _train_without_dropout(model: nn.Module) -> None:
    """Let the model train, but for what leaves values out."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()


def _check_scores(context: CheckContext) -> Iterator[CheckResult]:
    _train_without_dropout(context.model)
    with torch.no_grad():
        output, targets = context.run_model(context.select_rows()), context.batch["targets"]
    scores, losses = output["scores"].float(), output["losses"]
    normal = (scores.sum(-1) - 1).abs().max() < 1e-4 and scores.min() >= 0
    targets_fit = (
        targets.dtype == torch.long
        and targets.shape == (context.row_count,)
        and set(targets.tolist()) <= {0, 1}
    )
    misfit, is_finite = context.shape_problem(), scores.isfinite().all()
    sums_up = "the two scores of each row sum to 1: a softmax comes before cross-entropy, which has its own"
    twice = normal and any("cross_entropy" in name for name in losses)
    of_targets = f"the targets are {targets.dtype} of the shape {tuple(targets.shape)}"
    for is_so, text, advice in (
        (misfit, misfit, "metrics and predictions take the second score of a row as that of hateful"),
        (not targets_fit, of_targets, "they must be whole numbers, 0 or 1, one a row"),
        (not is_finite, "the scores are not finite", "look for a division by 0, or a log of it"),
        (twice, sums_up, "return the values before the softmax; with both, the loss stays above 0.3133"),
    ):
        if is_so:
            yield context.make_result("error", text, advice)
            return
    if (odd := describe_odd_loss(losses)) and context.is_head_fresh:
        yield context.make_result(
            "warning", odd, "look at what the last layer gets: its size, and if it has the label"
        )
    else:
        yield context.make_result("ok", f"two a row; the first loss is {total_loss(losses).item():.2f}")


def _check_parameters(context: CheckContext) -> Iterator[CheckResult]:
    if not any(each.requires_grad for each in context.model.parameters()):
        yield context.make_result("error", "all tensors are frozen", "something must be left to train")
        return
    context.model.zero_grad(set_to_none=True)
    total_loss(context.run_model(context.select_rows())["losses"]).backward()  # type: ignore[no-untyped-call]
    given = {id(parameter) for group in context.optimizer.param_groups for parameter in group["params"]}
    named = dict(context.model.named_parameters())
    unused = [name for name, each in named.items() if each.requires_grad and each.grad is None]
    never = _NEVER_TRAINED.get(context.model_name, re.compile(r"(?!)"))
    detached = [name for name in unused if not never.search(name)]
    by_mmf = [name for name in unused if never.search(name)]
    left_out = [name for name, each in named.items() if each.grad is not None and id(each) not in given]
    frozen = [name for name, each in named.items() if not each.requires_grad]
    found: tuple[tuple[Verdict, str, str | None, list[str]], ...] = (
        ("warning", "get no gradient", "look for a detach, or what forward never uses", detached),
        ("warning", "are not given to the optimizer", "see the model's get_optimizer_parameters", left_out),
        ("note", "get no gradient", "MMF's model has them, and never uses them", by_mmf),
        ("note", "are frozen", None, frozen),
    )
    for verdict, what, advice, names in found:
        if names:
            yield context.make_result(
                verdict, f"{len(names)} of {len(named)} tensors {what}: {summarize_list(names)}", advice
            )
    if not any(names for verdict, *_, names in found if verdict == "warning"):
        yield context.make_result(
            "ok", f"of {len(named)} tensors, all others get a gradient and are optimized"
        )


def _check_rows(context: CheckContext) -> Iterator[CheckResult]:
    context.model.eval()
    first, scores = (
        context.compute_scores(context.select_rows(0, 1)),
        context.compute_scores(context.select_rows()),
    )
    limit = _SCORE_TOLERANCE * max(1.0, scores.abs().max().item())
    alone = (scores[:1] - first).abs().max().item()
    again = (scores - context.compute_scores(context.select_rows(), seed=1)).abs().max().item()
    if again > limit:
        advice = "look for dropout or noise that does not ask self.training"
        yield context.make_result("error", f"evaluated twice, scores differ by {again:.2g}", advice)
    elif alone > limit:
        advice = "look for statistics of the batch, or a calculation over its rows (dimension 0)"
        yield context.make_result(
            "error", f"the first row's scores differ by {alone:.2g} without the others", advice
        )
    else:
        yield context.make_result("ok", "evaluated twice, or without the others, a row has the same score")


def _check_modalities(context: CheckContext) -> Iterator[CheckResult]:
    if context.row_count < 3:  # in a batch of one, nothing can be normalized
        yield context.make_result("note", "skipped: it takes 3 rows")
        return
    _train_without_dropout(
        context.model
    )  # unlike in eval(), a model that was not trained yet normalizes its values
    scores, other = context.compute_scores(context.select_rows(0, -1)), context.select_rows(1)
    unread = []
    for modality, keys in _MODALITIES.items():
        mixed = context.select_rows(0, -1)
        mixed.update({key: value for key, value in other.items() if keys.match(key)})
        if torch.allclose(context.compute_scores(mixed), scores, rtol=1e-6, atol=1e-7):
            unread.append(modality)
    text = f"with the {' or the '.join(unread)} of another row, all scores stay the same"
    if not unread:
        yield context.make_result("ok", "scores depend on text and image")
    elif unread == [
        "image" if context.model_name == "unimodal_text" else "text"
    ] and context.model_name.startswith("unimodal_"):
        yield context.make_result("ok", f"{text}, as this model is made")
    else:
        yield context.make_result("warning", text, "forward does not use it, or the head begins at 0")


def _check_texts(context: CheckContext) -> Iterator[CheckResult]:
    processor = getattr(context.dataset.text_processor, "processor", context.dataset.text_processor)
    if not hasattr(processor, "_tokenizer") and not hasattr(processor, "vocab"):
        yield context.make_result(
            "note", f"skipped: {type(processor).__name__} has neither a limit nor a vocabulary"
        )
        return
    tokens_of, most, is_unknown = _tokenizer_functions(processor)
    rows = [context.dataset.annotation_db[number] for number in range(len(context.dataset))]
    tokens = [tokens_of(row["text"]) for row in rows]
    cut = [str(int(row["id"])) for row, each in zip(rows, tokens, strict=True) if len(each) > most]
    unknown = sum(is_unknown(token) for each in tokens for token in each) / max(sum(map(len, tokens)), 1)
    verdict: Verdict = "note" if cut else "ok"
    if max(len(cut) / len(rows), unknown) > _WARNING_SHARE:
        verdict = "warning"
    text = f"{len(cut)} of {len(rows)} texts are cut after {most} tokens; {100 * unknown:.1f} % are unknown"
    advice = "the text_processor of dataset_config has the length; the vocabulary must be the model's"
    yield CheckResult(verdict, "", text, None if verdict == "ok" else advice, cut)


def _tokenizer_functions(processor: Any) -> tuple[Callable[[str], list[str]], int, Callable[[str], bool]]:
    """How MMF makes tokens of a text, how many it keeps, and which the vocabulary lacks."""
    if hasattr(processor, "_tokenizer"):
        tokenizer, unknown = processor._tokenizer, processor._tokenizer.unk_token
        return tokenizer.tokenize, processor._max_seq_length - 2, lambda token: token == unknown
    index, known = processor.vocab.get_unk_index(), processor.vocab.stoi

    def tokenize(text: str) -> list[str]:
        return list(processor.preprocessor({"text": text})["text"])

    return tokenize, processor.max_length, lambda token: known.get(token, index) == index


def _check_overfitting(context: CheckContext) -> Iterator[CheckResult]:
    groups, begun = context.optimizer.param_groups, time.monotonic()
    for group in groups:
        group["lr"] = group.get("initial_lr", group["lr"])  # a schedule begins at 0
    _train_without_dropout(context.model)
    rate = max(group["lr"] for group in groups)
    best = _measure_min_loss(context, context.optimizer)
    text = f"{context.row_count} rows in {_OVERFIT_UPDATES} updates: "
    text += f"at the run's rate of {rate:g} the least loss is {best:.2f}"
    if best < _MAX_LEARNED_LOSS:
        yield context.make_result("ok", text)
        return
    for own in _TRIAL_LEARNING_RATES:
        if (time.monotonic() - begun) * 2 > _MAX_CHECK_SECONDS:
            yield context.make_result("note", f"{text}; others would take too long here")
            return
        optimizer = torch.optim.Adam([p for p in context.model.parameters() if p.requires_grad], own)
        best = min(best, _measure_min_loss(context, optimizer))
        if best < _MAX_LEARNED_LOSS:
            advice = "it can learn; at a small rate, later" if rate < own else "the rate is too large"
            yield context.make_result("note", f"{text}, and at {own:g} it is {best:.2f}", advice)
            return
    advice = "what can be trained learns a few rows by heart: look at its loss and inputs, and what is frozen"
    yield context.make_result("error", f"{text}, and at none below {best:.2f}", advice)


def _measure_min_loss(context: CheckContext, optimizer: Any) -> float:
    """That of some updates with the same rows, whose weights are then put back."""
    least = math.inf
    with preserve_state(context.model, context.optimizer):
        for _ in range(_OVERFIT_UPDATES):
            context.model.zero_grad()
            loss = total_loss(context.run_model(context.select_rows())["losses"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            least = min(least, loss.item())
            if least < _MAX_LEARNED_LOSS / 2:
                break
    return least


#: Name → the check, and about how many forward passes it takes.
CHECKS: dict[str, tuple[Callable[[CheckContext], Iterable[CheckResult]], int]] = {
    "scores": (_check_scores, 0),
    "parameters": (_check_parameters, 3),
    "rows": (_check_rows, 3),
    "modalities": (_check_modalities, 3),
    "texts": (_check_texts, 0),
    "one batch": (_check_overfitting, 3 * _OVERFIT_UPDATES),
}
