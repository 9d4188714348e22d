"""Criteria: the loss that a task trains with, and the metric that it reports; what a metric is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.contract import metrics
from fedtide.base.errors import SettingsError

if TYPE_CHECKING:  # PyTorch is imported when something is computed: lists of tasks do not need it
    from torch import Tensor


IGNORED = -100  # a class that is padding of a sequence: it has no loss (`ignore_index` of PyTorch)
LOWER_IS_BETTER = ("loss", "error", "deviance")  # last words of the names of such metrics


class Metric(NamedTuple):
    """What is measured, such as ``mean-absolute-error``, and how its values are read.

    Values of which `is_share` are from 0 to 1, so that tables show them in percent.
    """

    name: str
    higher_is_better: bool = True
    is_share: bool = True

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], is_share: bool = False, better: str = "") -> Metric:
        """Return the metric that a function computes.

        Which values are better is said by `better`, "higher" or "lower", else by an attribute of the function
        (`higher_is_better`), else by the last word of its name. Likewise, `is_share` may be its attribute.
        """
        by_name = not getattr(function, "__name__", "").endswith(LOWER_IS_BETTER)
        higher = better == "higher" if better else bool(getattr(function, "higher_is_better", by_name))
        return cls(name, higher, bool(getattr(function, "is_share", is_share)))

    @property
    def key(self) -> str:
        """Its key in the record of a round."""
        return self.name.replace("-", "_")

    @property
    def title(self) -> str:
        """Its name in a table."""
        return self.key.replace("_", " ")

    def reaches(self, value: float, goal: float) -> bool:
        """Return whether a value is at least as good as another."""
        return value >= goal if self.higher_is_better else value <= goal


ACCURACY = Metric(metrics.ACCURACY)


class Criterion(ABC):
    """The loss of each example, which is minimised, and its score, whose mean is reported.

    Both get the model's outputs for n examples and their n targets, and must be made of PyTorch operations
    that treat the examples independently.
    """

    metric: ClassVar[Metric]
    """The name of the mean score, and which direction is better."""
    evaluated_at_once = 250
    """Examples in a batch of an evaluation."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, shape (n,)."""

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example, shape (n,)."""

    def counts(self, targets: Tensor) -> Tensor | None:
        """Return how much each example counts in every mean, shape (n,); None: all count the same.

        The loss and the score of a sequence that is padded are means over its other positions, which are what
        it counts: so that the mean over a batch, or over a test set, is one over positions.
        """
        return None

    def check(self, targets: NDArray[Any], num_outputs: int) -> None:  # noqa: B027
        """Raise a ValueError if these targets do not fit a model with this many outputs."""

    def predicts_numbers(self, targets: Tensor | NDArray[Any]) -> bool:
        """Return whether these targets are numbers, and neither classes nor labels."""
        return "float" in str(targets.dtype)

    def predictions(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what the model predicts, of the shape of the targets: the likeliest classes, or numbers."""
        return outputs.reshape(targets.shape) if self.predicts_numbers(targets) else outputs.argmax(-1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of classes, of the shape of the outputs; of numbers there are none."""
        return outputs.softmax(-1)

    def original(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return targets, or predictions, as they were before the task standardised them."""
        return values

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, a scalar."""
        if (counts := self.counts(targets)) is None:
            return self.losses(outputs, targets).mean()
        terms = counts.sum()  # where nothing counts, the mean is 0, and so is its gradient
        return self.total(outputs, targets) / terms.where(terms > 0, 1)

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses, each as often as it counts, a scalar."""
        losses, counts = self.losses(outputs, targets), self.counts(targets)
        return (losses if counts is None else losses * counts).sum()

    def error(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of weighted losses with respect to the outputs, and the losses.

        Outputs, which may be overwritten, and targets have shapes (..., B, *), weights (..., B); what is
        returned has shapes (..., B, *) and (...).
        """
        import torch

        last = weights.dim() - 1
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.losses(leaf.flatten(0, last), targets.flatten(0, last)).view(weights.shape)
            weighted = (losses * weights).sum(-1)
            (errors,) = torch.autograd.grad(weighted.sum(), leaf)
        return errors, weighted.detach()


class CrossEntropy(Criterion):
    """Classes: cross-entropy of the softmax of the outputs, and accuracy.

    Targets are class numbers, shape (n,) for outputs of shape (n, C); or sequences of them, shape (n, L) for
    outputs of shape (n, L, C), such as the next characters of a text: an example's loss and accuracy are then
    means over its L positions.
    """

    metric = ACCURACY

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        flat = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return _of_examples(flat.view(targets.shape))

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _of_examples((outputs.argmax(-1) == targets).to(outputs.dtype))

    def check(self, targets: NDArray[Any], num_outputs: int) -> None:
        """Raise a ValueError if a target is not one of the classes; on a GPU, it would end the process."""
        if not np.issubdtype(targets.dtype, np.integer):
            raise SettingsError(f"targets of type {targets.dtype} where classes are numbered from 0")
        least, most = (targets.min(), targets.max()) if targets.size else (0, 0)
        if least < 0 or most >= num_outputs:
            raise SettingsError(f"labels {least} to {most} where the task has {num_outputs} classes")

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self.is_plain:
            return super().mean(outputs, targets)
        from torch.nn import functional

        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() > 1 or not self.is_plain:
            return super().total(outputs, targets)
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets, reduction="sum")

    def error(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See `Criterion.error`: softmax minus one at the target."""
        if targets.dim() > weights.dim() or not self.is_plain:
            return super().error(outputs, targets, weights)
        log_p = outputs.log_softmax(-1)
        weights, targets = weights[..., None], targets[..., None]
        losses = (log_p.gather(-1, targets) * weights).sum((-2, -1)).neg_()
        errors = log_p.exp_().mul_(weights)
        return errors.scatter_add_(-1, targets, -weights), losses

    @property
    def is_plain(self) -> bool:
        """Whether losses and counts are these, not the user's own, as for smoothed labels or weights."""
        found = [getattr(method, "__func__", method) for method in (self.losses, self.counts)]
        return found == [CrossEntropy.losses, Criterion.counts]


CROSS_ENTROPY = CrossEntropy()


class SquaredError(Criterion):
    """Numbers: half the squared error, and the mean absolute error.

    Targets have the shape of the outputs, (n, C), or for a single output also (n,).

    Parameters
    ----------
    unit
        What one unit of the targets is in the unit of the metric: the standard deviation by which
        standardised targets were divided.
    zero
        What a target of 0 is in that unit: the mean that was subtracted.
    """

    metric = Metric(metrics.MEAN_ABSOLUTE_ERROR, higher_is_better=False, is_share=False)

    def __init__(self, unit: float = 1.0, zero: float = 0.0) -> None:
        self.unit, self.zero = unit, zero

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.losses`; the sum over an example's numbers."""
        return _differences(outputs, targets).square().sum(-1) / 2

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.scores`; the mean over an example's numbers."""
        return _differences(outputs, targets).abs().mean(-1) * self.unit

    def original(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(np.float64) * self.unit + self.zero

    def check(self, targets: NDArray[Any], num_outputs: int) -> None:
        """Raise a ValueError if there are not as many numbers as outputs."""
        _require_width(targets, num_outputs)


class BinaryCrossEntropy(Criterion):
    """Labels, any number of which may apply: binary cross-entropy of each, and the share that is right.

    Targets are 0 or 1 as floating-point numbers, of the shape of the outputs, (n, C).
    """

    metric = ACCURACY

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.losses`; the sum over the labels."""
        from torch.nn import functional

        flat, wanted = outputs.flatten(1), targets.flatten(1)
        return functional.binary_cross_entropy_with_logits(flat, wanted, reduction="none").sum(-1)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.scores`; the mean over the labels."""
        right = self.predictions(outputs, targets) == targets
        return right.flatten(1).to(outputs.dtype).mean(-1)

    def predicts_numbers(self, targets: Tensor | NDArray[Any]) -> bool:
        """See `Criterion.predicts_numbers`; they say which labels apply."""
        return False

    def predictions(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Criterion.predictions`; 1 where a label applies."""
        return (outputs.reshape(targets.shape) > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """See `Criterion.probabilities`; of each label."""
        return outputs.sigmoid()

    def check(self, targets: NDArray[Any], num_outputs: int) -> None:
        """Raise a ValueError if targets are not one 0 or 1 for each output."""
        _require_width(targets, num_outputs)
        if not np.isin(targets, (0, 1)).all():
            raise SettingsError("targets other than 0 and 1, which mark the labels that apply")


def _of_examples(values: Tensor) -> Tensor:
    """Return means over all but the first dimension, shape (n,)."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _differences(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs minus targets, shape (n, C)."""
    return (outputs - targets.reshape(outputs.shape)).flatten(1)


def _require_width(targets: NDArray[Any], num_outputs: int) -> None:
    width = int(np.prod(targets.shape[1:]))
    if width != num_outputs:
        raise SettingsError(f"{width} numbers in each target where the model has {num_outputs} outputs")
    if not np.issubdtype(targets.dtype, np.floating):
        raise SettingsError(f"targets of type {targets.dtype} where floating-point numbers are expected")
