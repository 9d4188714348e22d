"""Loss and metric of a model on a set of examples."""

from __future__ import annotations

import copy
import math
import random  # noqa: TID251 - its state is looked at
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from clients.gradients.flat import FlatModel, as_tensor, one_thread, own_draws
from fedtide.base.errors import SettingsError, described, own_places
from fedtide.base.fingerprint import fingerprint
from fedtide.tasks import Criterion, Examples, FederatedData, are_classes, some_examples
from fedtide.tasks.metrics import View, Views, view_of

MAX_THREADS = 16  # each holds the activations of a batch
SIMILAR = 1e-3  # a relative, and an absolute difference, of what GPUs compute twice
WORTH_COPIES = 0.02  # seconds of work, for which several threads get copies of the model


class _Batch(NamedTuple):
    """Some examples: their total loss, their scores, and what metrics get of them."""

    total: float
    scores: Tensor  # (n,)
    counts: Tensor  # (n,), see `Criterion.counts`
    views: Views


def evaluate(model: FlatModel, examples: Examples) -> tuple[float, float]:
    """Return mean loss and score of the model with its current weights; see `fedtide.tasks.Criterion`."""
    return evaluate_with_views(model, examples, ())[:2]


def evaluate_with_views(
    model: FlatModel, examples: Examples, needed: Collection[View]
) -> tuple[float, float, Views]:
    """Return the same, and in one pass what metrics get of the examples."""
    if not len(examples[1]):
        raise SettingsError("there are no examples to evaluate on")
    batches = _by_batch(model, examples, needed)
    loss, score = sum(b.total for b in batches), sum(float((b.scores * b.counts).sum()) for b in batches)
    terms = sum(float(b.counts.sum()) for b in batches) or math.nan
    return loss / terms, score / terms, _joined(batches, needed)


def check_outputs(model: FlatModel, data: FederatedData) -> None:
    """Raise SettingsError if model or criterion do not work on these data, or return other shapes."""
    examples, kept = _two_examples(data), model.vector.clone()
    _check_criterion(data.criterion)
    try:
        for prepare in (model.module.eval, model.train):  # some return more in training
            prepare()
            x = as_tensor(examples[0]).to(model.device, copy=True)
            version = x._version  # numbers alone say little: a ReLU in place leaves pixels as they are
            with torch.no_grad(), own_draws(model.device):
                outputs = model.module(x)
            if x._version != version:
                raise SettingsError("it changes its inputs, as a first layer with inplace=True does")
            if not isinstance(outputs, Tensor):
                kind = type(outputs).__name__
                raise SettingsError(f"it returns a {kind}, where its forward has to return one tensor")
            width = outputs.shape[-1] if outputs.dim() > 1 else 1
            if len(outputs) != 2 or width != data.num_outputs:
                wanted = f"where the last number has to be {data.num_outputs}"
                raise SettingsError(f"it returns shape {tuple(outputs.shape)} for 2 examples, {wanted}")
        targets, criterion = as_tensor(examples[1]).to(model.device), data.criterion
        if targets.dim() == outputs.dim() == 2 and targets.shape != outputs.shape:
            raise SettingsError(
                f"it predicts once for each example, and the task has {targets.shape[1]} positions; take "
                "a model of sequences, such as hf-lm"
            )
        functions = {"losses": criterion.losses, "scores": criterion.scores}
        shapes = {name: np.shape(function(outputs, targets)) for name, function in functions.items()}
        if all(shape == (2,) for shape in shapes.values()):
            evaluate(model, examples)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        text = described(error) if isinstance(error, AssertionError) else str(error)
        reason = " ".join(map(str, (text.partition("\n")[0], *own_places(error)[-1:])))
        inputs = f"inputs of shape {data.input_shape} ({data.test[0].dtype})"
        raise SettingsError(
            f"the model does not fit the task with {inputs} and {data.num_outputs} outputs: {reason}"
        ) from None
    finally:
        model.load(kept)
    for name, shape in shapes.items():
        if shape != (2,):
            raise SettingsError(
                f"{name} of {type(criterion).__name__} return shape {tuple(shape)} for 2 examples, not (2,): "
                "a number for each, without their mean or sum"
            )


def _check_criterion(criterion: Criterion) -> None:
    """Raise SettingsError if it has weights to train, which are of no client's model."""
    for part in (criterion, *vars(criterion).values()):
        weights = part.parameters() if isinstance(part, nn.Module) else [part]
        if any(isinstance(weight, nn.Parameter) and weight.requires_grad for weight in weights):
            raise SettingsError(
                f"{type(criterion).__name__} has weights of its own, which nobody would train: make them a "
                "part of the model, or set requires_grad to False"
            )


def check_gradient(model: FlatModel, data: FederatedData) -> None:
    """Raise SettingsError if a model that `check_outputs` accepts has no gradient by autograd."""
    kept = model.vector.clone()
    x, targets = (as_tensor(part).to(model.device) for part in _two_examples(data))
    try:
        with own_draws(model.device), one_thread():
            model.random.begin(0, model.device)
            model.gradient(model.vector, (x, targets))
    except (SettingsError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        reason = described(error).partition("\n")[0]
        raise SettingsError(
            f"the model cannot be trained, as its loss has no gradient: {reason}; from weights to outputs, "
            "nothing may go through argmax, detach or NumPy, or be changed in place"
        ) from None
    finally:
        model.random.begin(None, model.device)
        model.load(kept)


def check_memory(model: FlatModel, data: FederatedData) -> None:
    """Raise SettingsError if a model, once tried, keeps more than its buffers, or draws in evaluation.

    One object trains many clients, in an order that no setting says, and each would find what another has
    left. The same batch twice, after another one in `check_outputs`, shows it: outputs or attributes differ.
    """
    if not any(map(_is_own, model.module.modules())):
        return
    kept, tried = model.vector.clone(), list[tuple[Any, dict[str, str | None]]]()
    inputs, generators = as_tensor(_two_examples(data)[0]).to(model.device), [_other_generators()]
    try:
        for _ in range(2):
            model.load(kept)
            with torch.no_grad(), own_draws(model.device):
                tried.append((model.module(inputs), _attributes(model.module)))
            generators.append(_other_generators())
    except Exception:
        return  # it does not suit these examples, which shows when it is trained
    finally:
        model.load(kept)
    model.module.eval()
    draws = model.draws(inputs)
    model.train()
    if draws:
        raise SettingsError(
            "model: it draws random numbers in evaluation, too: give functions such as dropout "
            "training=self.training"
        )
    if len({*generators}) == 3:  # if only once, another thread may have drawn, such as Flower's heartbeat
        raise SettingsError(
            "model: it draws random numbers from Python's or NumPy's generator, which the seed does not "
            "set: draw them with PyTorch's own"
        )
    (outputs, before), (again, after) = tried
    where = next((name for name in before if after.get(name) != before[name]), "")
    if where or not torch.allclose(outputs, again, SIMILAR, SIMILAR, equal_nan=True):
        what = f"{where} changes while it computes" if where else "its outputs for a batch change"
        raise SettingsError(
            f"model: {what}, and a client would find what another has left: keep that in buffers "
            "that __init__ registers in a part with trained weights, and draw with PyTorch's own generator"
        )


def _two_examples(data: FederatedData) -> Examples:
    """Return two examples of a client, or one of them twice: zeros may be padding, or nothing to learn."""
    x, targets = some_examples(data, 2)
    return x[[0, -1]], targets[[0, -1]]


def _other_generators() -> str | None:
    """Return digits for the states of the generators that are global in Python and NumPy."""
    return fingerprint((random.getstate(), np.random.get_state()))  # noqa: NPY002 - models may draw there


def _attributes(module: nn.Module) -> dict[str, str | None]:
    """Return digits for what a model keeps beside trained weights and buffers.

    They are those of frozen weights, and of what the user's own layers have beside parameters and hooks.
    """
    usual = vars(nn.Module()).keys()
    fixed = ((name, weight) for name, weight in module.named_parameters() if not weight.requires_grad)
    return {f"frozen weight {name}": str(weight.detach().float().sum().item()) for name, weight in fixed} | {
        f"attribute {key} of {f'layer {name}' if name else 'the model'}": fingerprint(value)
        for name, part in module.named_modules()
        if _is_own(part)
        for key, value in vars(part).items()
        if key not in usual
    }


def _is_own(part: nn.Module) -> bool:
    return type(part).__module__.partition(".")[0] not in ("torch", "torchvision")


class PartScores(NamedTuple):
    """Scores of the examples of several parts, all in one order, and what metrics get of them."""

    counts: NDArray[np.int64]  # examples of each part, shape (P,)
    scores: NDArray[np.float64]  # shape (n,)
    weights: NDArray[np.float64]  # shape (n,), of each score in a mean
    targets: NDArray[Any]
    views: Views

    @property
    def owners(self) -> NDArray[np.intp]:
        """The part of each example, shape (n,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def terms(self) -> NDArray[np.float64]:
        """What the mean of each part is a mean over: mostly its examples, shape (P,)."""
        return np.bincount(self.owners, self.weights, len(self.counts)).astype(np.float64, copy=False)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The parts with an example that counts, shape (P,)."""
        return self.terms > 0

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean score of each part, NaN where nothing counts."""
        totals = np.bincount(self.owners, self.scores * self.weights, len(self.counts))
        means, terms = np.full(len(totals), np.nan), self.terms
        np.divide(totals, terms, out=means, where=terms > 0)
        return means


def part_scores(model: FlatModel, parts: Sequence[Examples], needed: Collection[View] = ()) -> PartScores:
    """Evaluate the model with its current weights on several parts, some of which may be empty."""
    counts = np.array([len(targets) for _, targets in parts], np.int64)
    if not counts.any():
        return PartScores(counts, np.empty(0), np.empty(0), np.empty(0), {})
    x, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    batches = _by_batch(model, (x, targets), needed)
    scores, weights = (
        torch.cat(parts).double().cpu().numpy()
        for parts in zip(*((b.scores, b.counts) for b in batches), strict=True)
    )
    return PartScores(counts, scores, weights, targets, _joined(batches, needed))


def _joined(batches: Sequence[_Batch], needed: Collection[View]) -> Views:
    return {view: np.concatenate([batch.views[view] for batch in batches]) for view in needed}


def _by_batch(model: FlatModel, examples: Examples, needed: Collection[View] = ()) -> list[_Batch]:
    """Evaluate some examples at a time, in their order.

    One thread computes a batch, so that no bit depends on the number of cores, and nothing waits for a core
    that does other work, as threads inside an operation do. Where there is much to do on a CPU, several
    threads do so, each with its own copy of the model.
    """
    starts = range(0, len(examples[1]), model.criterion.evaluated_at_once)
    threads = min(torch.get_num_threads(), len(starts) - 1, MAX_THREADS) if model.device.type == "cpu" else 1
    model.module.eval()
    try:
        with one_thread():
            began = time.perf_counter()
            first = _measure(model, model.module, examples, needed, 0)
            seconds_left = (time.perf_counter() - began) * (len(starts) - 1)
            if threads < 2 or seconds_left < WORTH_COPIES:
                others = (_measure(model, model.module, examples, needed, start) for start in starts[1:])
                return [first, *others]
            return [first, *_at_once(model, examples, needed, starts[1:], threads)]
    finally:
        model.train()


def _at_once(
    model: FlatModel, examples: Examples, needed: Collection[View], starts: Sequence[int], threads: int
) -> list[_Batch]:
    copies, own = [copy.deepcopy(model.module) for _ in range(threads)], threading.local()

    def take_copy() -> None:
        own.module = copies.pop()

    with ThreadPoolExecutor(threads, initializer=take_copy) as pool:
        return list(pool.map(lambda start: _measure(model, own.module, examples, needed, start), starts))


def _measure(
    model: FlatModel, module: nn.Module, examples: Examples, needed: Collection[View], start: int
) -> _Batch:
    """Evaluate the batch that begins at `start`."""
    criterion, end = model.criterion, start + model.criterion.evaluated_at_once
    x, targets = (as_tensor(part[start:end]).to(model.device) for part in examples)
    with torch.no_grad(), PoolingByHalves():
        outputs = module(x)
        views = {view: view_of(view, criterion, outputs, targets) for view in needed}
    total, scores = float(criterion.total(outputs, targets)), criterion.scores(outputs, targets)
    counts = criterion.counts(targets)
    return _Batch(total, scores, torch.ones_like(scores) if counts is None else counts, views)


class PoolingByHalves(TorchFunctionMode):
    """Max pooling of 2 x 2 pixels on a CPU as two comparisons: the same numbers, several times as fast.

    PyTorch's function also notes where each maximum was, which only gradients need.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        of_x = func is functional.max_pool2d and bool(args)
        if of_x and args[0].device.type == "cpu" and _halves(*args[1:], **options):
            height, width = (size // 2 * 2 for size in args[0].shape[-2:])
            rows = torch.maximum(args[0][..., :height:2, :], args[0][..., 1:height:2, :])
            return torch.maximum(rows[..., :width:2], rows[..., 1:width:2])
        return func(*args, **options)


def _halves(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, **others: bool
) -> bool:
    """Whether max pooling with these options is of squares of 2 x 2 pixels, and of whole ones alone."""
    twos = (2, (2, 2), [2, 2])
    plain = padding in (0, (0, 0)) and dilation in (1, (1, 1)) and not any(others.values())
    return plain and kernel_size in twos and (stride is None or stride in twos)


def own_test(data: FederatedData, client: int) -> Examples:
    """Return the examples on which a client's model is evaluated: similar to its own, and never trained on.

    They are its hold-out. Without hold-outs, they are the common test set, of classes only those that occur
    among the client's training examples, in the proportions of the test set.
    """
    alone = np.array([client])
    try:
        return data.holdout(alone)
    except ValueError:
        x, targets = data.test
        if not are_classes(targets):
            return x, targets
        occurs = np.isin(targets, data.train_set(alone)[1])
        return x[occurs], targets[occurs]
