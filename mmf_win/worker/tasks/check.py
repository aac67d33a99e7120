"""Checks of a model and its rows before training; docs/checking.md explains each check."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import nn

from mmf_win.console import summarize_list
from mmf_win.protocol.check_result import CheckResult, Verdict
from mmf_win.records import to_stored
from mmf_win.worker.hooks import batch_splitting
from mmf_win.worker.hooks.first_loss import describe_odd_loss, has_fresh_head, total_loss
from mmf_win.worker.hooks.observer import Observer
from mmf_win.worker.hooks.random_state import preserve_state
from mmf_win.worker.outcome import ChecksFinished, StopRequested
from mmf_win.worker.prediction_progress import get_single_loader

_MAX_CHECK_SECONDS = 60.0
_MAX_BATCHES, _MAX_ROWS = 8, 8  # searched for rows with both labels
_OVERFIT_UPDATES = 40  # to learn the rows
_TRIAL_LEARNING_RATES = (1e-3, 1e-2)
_MAX_LEARNED_LOSS = 0.2  # a softmax before cross-entropy keeps the loss above ln(1 + 1/e) = 0.3133
_SCORE_TOLERANCE = 5e-3  # of the largest score; other batch sizes use other kernels
_WARNING_SHARE = 0.1  # of truncated texts or of unknown tokens
_MODALITIES = {"text": re.compile("text|input_|segment|lm_label|tokens|length"), "image": re.compile("image|img|bbox")}
_NEVER_TRAINED = {"vilbert": re.compile(r"\.biOutput\.q_dense[12]\.")}  # MMF creates them but never uses them


class CheckContext:
    """The model and optimizer of a trainer, and some rows with both labels.

    Attributes:
        is_head_fresh: The head was not loaded from a file.
        forward_seconds: Duration of the last forward pass.
        scores_shape: Shape of the last scores; ``None`` before the first pass.
    """

    def __init__(self, trainer: Any, limit: int, *, is_head_fresh: bool) -> None:
        self.model, self.optimizer, self.is_head_fresh = trainer.model, trainer.optimizer, is_head_fresh
        self.model_name, self.forward_seconds = str(trainer.config.model), 0.0
        self.dataset = get_single_loader(trainer.train_loader).dataset
        for _, batch in zip(range(_MAX_BATCHES), trainer.train_loader, strict=False):
            if batch["targets"][:_MAX_ROWS].unique().numel() > 1:
                break
        first_rows = slice(min(_MAX_ROWS, limit))
        self.batch = batch_splitting.select_rows(batch, first_rows, batch.get_batch_size()).to(trainer.device)
        self.row_count: int = self.batch.get_batch_size()
        self.meme_ids = [str(int(meme_id)) for meme_id in self.batch["id"]]
        self.scores_shape: tuple[int, ...] | None = None
        self.model.register_forward_hook(self._record_scores_shape)  # before the losses, which may fail

    def make_result(self, verdict: Verdict, text: str, advice: str | None = None) -> CheckResult:
        """Return a result about these rows; :func:`run` adds the name of the check."""
        return CheckResult(verdict, "", text, advice, self.meme_ids)

    def _record_scores_shape(self, _module: nn.Module, _args: Any, output: Mapping[str, Any]) -> None:
        self.scores_shape = tuple(output["scores"].shape)

    def shape_problem(self) -> str:
        """Describe a wrong shape of the scores; empty if it is correct or not known yet."""
        correct = (self.row_count, 2)
        return f"the scores have shape {self.scores_shape}, not {correct}" * (self.scores_shape not in (None, correct))

    def select_rows(self, first: int = 0, end: int | None = None) -> Any:
        """Return a copy of some rows, because models add fields to their input."""
        return batch_splitting.select_rows(self.batch, slice(first, end), self.row_count)

    def run_model(self, batch: Any, seed: int = 0) -> Mapping[str, Any]:
        """Return the output of the model for a batch; randomness depends on the seed alone."""
        torch.manual_seed(seed)
        started = time.monotonic()
        output: Mapping[str, Any] = self.model(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.forward_seconds = time.monotonic() - started
        return output

    @torch.no_grad()
    def compute_scores(self, batch: Any, seed: int = 0) -> torch.Tensor:
        """Return the scores of a batch, on the CPU."""
        return torch.as_tensor(self.run_model(batch, seed)["scores"]).float().cpu()


def run_checks(observer: Observer, trainer: Any, limit: int) -> NoReturn:
    """Run all checks with at most ``limit`` rows, write an event for each result, and end the attempt.

    Raises:
        ChecksFinished: Always, after the checks.
        StopRequested: A stop was requested.
        OutOfMemoryError: The GPU's memory is full.
    """
    context = CheckContext(trainer, limit, is_head_fresh=has_fresh_head(trainer.model, observer.loaded_tensors))
    for name, (check, passes) in CHECKS.items():
        started, has_failed = time.monotonic(), False
        try:
            if (seconds := passes * context.forward_seconds) > _MAX_CHECK_SECONDS:
                results = [context.make_result("note", f"skipped: would take about {seconds:.0f} s here")]
            else:
                results = list(check(context))
        except (StopRequested, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            traceback.print_exc()
            text, has_failed = f"{type(error).__name__}: {' '.join(str(error).split())}", True
            advice = context.shape_problem() or "the model cannot be trained before this is fixed"
            results = [context.make_result("error", text, advice)]
        seconds = round(time.monotonic() - started, 2)
        for result in results:
            observer.write_event("checked", **to_stored(replace(result, check=name, seconds=seconds)))
        if has_failed:
            break
        observer.heartbeat()
    raise ChecksFinished


def _train_without_dropout(model: nn.Module) -> None:
    """Put the model into training mode, except dropout layers."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()


def _check_scores(context: CheckContext) -> Iterator[CheckResult]:
    _train_without_dropout(context.model)
    with torch.no_grad():
        output, targets = context.run_model(context.select_rows()), context.batch["targets"]
    scores, losses = output["scores"].float(), output["losses"]
    is_normalized = (scores.sum(-1) - 1).abs().max() < 1e-4 and scores.min() >= 0
    targets_fit = (
        targets.dtype == torch.long and targets.shape == (context.row_count,) and set(targets.tolist()) <= {0, 1}
    )
    shape_problem, is_finite = context.shape_problem(), scores.isfinite().all()
    softmax = "the two scores of each row sum to 1: a softmax comes before cross-entropy, which applies its own"
    is_softmax = is_normalized and any("cross_entropy" in name for name in losses)
    targets_shape = f"the targets are {targets.dtype} with shape {tuple(targets.shape)}"
    for applies, text, advice in (
        (shape_problem, shape_problem, "return two scores per row; the second is that of hateful memes"),
        (not targets_fit, targets_shape, "use one integer per row, 0 or 1"),
        (not is_finite, "the scores are not finite", "look for a division by 0 or a logarithm of 0"),
        (is_softmax, softmax, "return the values before the softmax; otherwise, the loss stays above 0.3133"),
    ):
        if applies:
            yield context.make_result("error", text, advice)
            return
    if (odd_loss := describe_odd_loss(losses)) and context.is_head_fresh:
        advice = "check the input of the last layer: its scale, and whether it contains the label"
        yield context.make_result("warning", odd_loss, advice)
    else:
        yield context.make_result("ok", f"two per row; the first loss is {total_loss(losses).item():.2f}")


def _check_parameters(context: CheckContext) -> Iterator[CheckResult]:
    if not any(p.requires_grad for p in context.model.parameters()):
        yield context.make_result("error", "all tensors are frozen", "leave some tensors trainable")
        return
    context.model.zero_grad(set_to_none=True)
    total_loss(context.run_model(context.select_rows())["losses"]).backward()  # type: ignore[no-untyped-call]
    optimized = {id(parameter) for group in context.optimizer.param_groups for parameter in group["params"]}
    parameters = dict(context.model.named_parameters())
    unused = [name for name, p in parameters.items() if p.requires_grad and p.grad is None]
    never_trained = _NEVER_TRAINED.get(context.model_name, re.compile(r"(?!)"))
    detached = [name for name in unused if not never_trained.search(name)]
    unused_by_mmf = [name for name in unused if never_trained.search(name)]
    not_optimized = [name for name, p in parameters.items() if p.grad is not None and id(p) not in optimized]
    frozen = [name for name, p in parameters.items() if not p.requires_grad]
    findings: tuple[tuple[Verdict, str, str | None, list[str]], ...] = (
        ("warning", "get no gradient", "look for detach(), or parameters that are never used", detached),
        ("warning", "are not given to the optimizer", "check get_optimizer_parameters()", not_optimized),
        ("note", "get no gradient", "MMF's model creates them but never uses them", unused_by_mmf),
        ("note", "are frozen", None, frozen),
    )
    for verdict, problem, advice, names in findings:
        if names:
            text = f"{len(names)} of {len(parameters)} tensors {problem}: {summarize_list(names)}"
            yield context.make_result(verdict, text, advice)
    if not any(names for verdict, *_, names in findings if verdict == "warning"):
        text = f"all other tensors (of {len(parameters)}) get a gradient and are optimized"
        yield context.make_result("ok", text)


def _check_rows(context: CheckContext) -> Iterator[CheckResult]:
    context.model.eval()
    first_row_scores = context.compute_scores(context.select_rows(0, 1))
    scores = context.compute_scores(context.select_rows())
    limit = _SCORE_TOLERANCE * max(1.0, scores.abs().max().item())
    difference_alone = (scores[:1] - first_row_scores).abs().max().item()
    difference = (scores - context.compute_scores(context.select_rows(), seed=1)).abs().max().item()
    if difference > limit:
        advice = "look for dropout or noise that ignores self.training"
        yield context.make_result("error", f"evaluated twice, scores differ by {difference:.2g}", advice)
    elif difference_alone > limit:
        advice = "look for batch statistics or operations across rows (dimension 0)"
        text = f"the first row's scores differ by {difference_alone:.2g} without the other rows"
        yield context.make_result("error", text, advice)
    else:
        yield context.make_result("ok", "scores are repeatable and do not depend on the other rows")


def _check_modalities(context: CheckContext) -> Iterator[CheckResult]:
    if context.row_count < 3:  # a batch of one row cannot be normalized
        yield context.make_result("note", "skipped: at least 3 rows are required")
        return
    # Unlike in eval(), batch normalization also works in a model that was not trained yet.
    _train_without_dropout(context.model)
    scores, other_rows = context.compute_scores(context.select_rows(0, -1)), context.select_rows(1)
    ignored, model_name = list[str](), context.model_name
    for modality, keys in _MODALITIES.items():
        mixed_rows = context.select_rows(0, -1)
        mixed_rows.update({key: value for key, value in other_rows.items() if keys.match(key)})
        if torch.allclose(context.compute_scores(mixed_rows), scores, rtol=1e-6, atol=1e-7):
            ignored.append(modality)
    text = f"all scores stay the same with the {' or the '.join(ignored)} of another row"
    if not ignored:
        yield context.make_result("ok", "scores depend on text and image")
    elif ignored == ["image" if model_name == "unimodal_text" else "text"] and model_name.startswith("unimodal_"):
        yield context.make_result("ok", f"{text}, as expected for this model")
    else:
        advice = "check that forward() uses it, and that the head is not initialized with 0"
        yield context.make_result("warning", text, advice)


def _check_texts(context: CheckContext) -> Iterator[CheckResult]:
    processor = getattr(context.dataset.text_processor, "processor", context.dataset.text_processor)
    if not hasattr(processor, "_tokenizer") and not hasattr(processor, "vocab"):
        name = type(processor).__name__
        yield context.make_result("note", f"skipped: {name} has neither a length limit nor a vocabulary")
        return
    tokenize, max_tokens, is_unknown = _tokenizer_functions(processor)
    rows = [context.dataset.annotation_db[number] for number in range(len(context.dataset))]
    tokens = [tokenize(row["text"]) for row in rows]
    too_long = [str(int(row["id"])) for row, text in zip(rows, tokens, strict=True) if len(text) > max_tokens]
    unknown = sum(is_unknown(token) for text in tokens for token in text) / max(sum(map(len, tokens)), 1)
    verdict: Verdict = "note" if too_long else "ok"
    if max(len(too_long) / len(rows), unknown) > _WARNING_SHARE:
        verdict = "warning"
    truncated = f"{len(too_long)} of {len(rows)} texts are truncated to {max_tokens} tokens"
    advice = "set the length in the text_processor of dataset_config; the vocabulary must be the model's"
    message = f"{truncated}; {100 * unknown:.1f} % of all tokens are unknown"
    yield CheckResult(verdict, "", message, None if verdict == "ok" else advice, too_long)


def _tokenizer_functions(processor: Any) -> tuple[Callable[[str], list[str]], int, Callable[[str], bool]]:
    """Return MMF's function that tokenizes a text, its length limit, and a test for unknown tokens."""
    if hasattr(processor, "_tokenizer"):
        tokenizer, unknown_token = processor._tokenizer, processor._tokenizer.unk_token
        return tokenizer.tokenize, processor._max_seq_length - 2, lambda token: token == unknown_token
    unknown_index, vocabulary = processor.vocab.get_unk_index(), processor.vocab.stoi

    def tokenize(text: str) -> list[str]:
        return list(processor.preprocessor({"text": text})["text"])

    return tokenize, processor.max_length, lambda token: vocabulary.get(token, unknown_index) == unknown_index


def _check_overfitting(context: CheckContext) -> Iterator[CheckResult]:
    groups, started = context.optimizer.param_groups, time.monotonic()
    for group in groups:
        group["lr"] = group.get("initial_lr", group["lr"])  # a warm-up schedule starts at 0
    _train_without_dropout(context.model)
    rate = max(group["lr"] for group in groups)
    min_loss = _measure_min_loss(context, context.optimizer)
    text = f"{context.row_count} rows in {_OVERFIT_UPDATES} updates: "
    text += f"the lowest loss is {min_loss:.2f} at the run's learning rate of {rate:g}"
    if min_loss < _MAX_LEARNED_LOSS:
        yield context.make_result("ok", text)
        return
    for trial_rate in _TRIAL_LEARNING_RATES:
        if (time.monotonic() - started) * 2 > _MAX_CHECK_SECONDS:
            yield context.make_result("note", f"{text}; other rates would take too long here")
            return
        optimizer = torch.optim.Adam([p for p in context.model.parameters() if p.requires_grad], trial_rate)
        min_loss = min(min_loss, _measure_min_loss(context, optimizer))
        if min_loss < _MAX_LEARNED_LOSS:
            advice = "the model learns, but slowly at the run's rate" if rate < trial_rate else "reduce the rate"
            yield context.make_result("note", f"{text}, and {min_loss:.2f} at {trial_rate:g}", advice)
            return
    advice = "a working model can memorize a few rows; check the loss, the inputs and what is frozen"
    yield context.make_result("error", f"{text}, and not below {min_loss:.2f} at others", advice)


def _measure_min_loss(context: CheckContext, optimizer: Any) -> float:
    """Return the lowest loss of some updates with the same rows, and restore the weights."""
    min_loss = math.inf
    with preserve_state(context.model, context.optimizer):
        for _ in range(_OVERFIT_UPDATES):
            context.model.zero_grad()
            loss = total_loss(context.run_model(context.select_rows())["losses"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            min_loss = min(min_loss, loss.item())
            if min_loss < _MAX_LEARNED_LOSS / 2:
                break
    return min_loss


#: Name → the check and its approximate number of forward passes.
CHECKS: dict[str, tuple[Callable[[CheckContext], Iterable[CheckResult]], int]] = {
    "scores": (_check_scores, 0),
    "parameters": (_check_parameters, 3),
    "rows": (_check_rows, 3),
    "modalities": (_check_modalities, 3),
    "texts": (_check_texts, 0),
    "one batch": (_check_overfitting, 3 * _OVERFIT_UPDATES),
}
