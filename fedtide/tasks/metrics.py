"""Metrics of one's own choice: functions of all targets of a test set, and of what a model returns for them.

Their specs are `NAME:OPTION=VALUE,...`, as in `f1_score:average=macro`. A bare name is a function of
`sklearn.metrics`, whose ending `_score` may be left out; one with dots is a function of the user's own, or of
`torchmetrics.functional`.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base import dotted
from fedtide.base.allowed import Option, as_options, did_you_mean
from fedtide.base.contract.metrics import OF_CLIENTS, RECORDED
from fedtide.base.errors import SettingsError
from fedtide.base.specs import Part, Spec, convert, parse
from fedtide.tasks.criteria import IGNORED, Criterion, Metric

if TYPE_CHECKING:
    from torch import Tensor

Views = Mapping["View", NDArray[Any]]
"""What metrics get beside the targets, of all examples."""

MAX_EXPONENT = 700.0  # e to more is no number
KIND = "metrics"  # the setting, and what dotted names stand for
View = Literal["labels", "losses", "probabilities", "outputs", "preds"]
"""What a metric gets beside the targets; `preds` are probabilities, or predicted numbers, as tensors."""
VIEWS: dict[str, View] = {
    **dict.fromkeys(("y_pred", "y2"), "labels"),
    "losses": "losses",
    **dict.fromkeys(("y_score", "y_prob", "y_proba"), "probabilities"),
}
"""By the name of a function's second parameter; of any other name, the outputs."""
_PROBABILITIES = ("log_loss", "d2_log_loss_score")  # whose second parameter has other names in some versions

_SHARES = (
    *("accuracy_score", "average_precision_score", "balanced_accuracy_score", "f1_score", "fbeta_score"),
    *("hamming_loss", "jaccard_score", "precision_score", "recall_score", "roc_auc_score"),
    *("top_k_accuracy_score", "zero_one_loss"),
)
_OTHERS = (
    *("brier_score_loss", "cohen_kappa_score", "coverage_error", "d2_absolute_error_score"),
    *("d2_log_loss_score", "d2_pinball_score", "d2_tweedie_score", "dcg_score", "explained_variance_score"),
    *("hinge_loss", "label_ranking_average_precision_score", "label_ranking_loss", "log_loss"),
    *("matthews_corrcoef", "max_error", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_gamma_deviance", "mean_pinball_loss", "mean_poisson_deviance", "mean_squared_error"),
    *("mean_squared_log_error", "mean_tweedie_deviance", "median_absolute_error", "ndcg_score", "r2_score"),
    *("root_mean_squared_error", "root_mean_squared_log_error"),
)
_NOT_A_SHARE = {"adjusted", "normalize"}  # options that change the range
_ARRAYS = ("sample_weight", "labels")  # parameters that are none


def perplexity(y_true: NDArray[Any], losses: NDArray[Any]) -> float:
    """Exponential of the mean cross-entropy: of a language model, over all tokens."""
    return math.exp(min(float(losses.mean(dtype=np.float64)), MAX_EXPONENT))


perplexity.higher_is_better = False  # type: ignore[attr-defined]


class _ScikitLearn(Mapping[str, Callable[..., Any]]):
    """Perplexity, and the metrics of scikit-learn that are one number; it is imported when one is taken."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name == "perplexity":
            return perplexity
        import sklearn.metrics

        found: Callable[..., Any] = getattr(sklearn.metrics, self._whole(name))
        return found

    def __contains__(self, name: object) -> bool:
        return self._whole(str(name)) in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    _names = tuple(sorted((*_SHARES, *_OTHERS, "perplexity")))

    def _whole(self, name: str) -> str:
        return name if name in self._names else f"{name}_score"


SCIKIT_LEARN = _ScikitLearn()


class UndefinedMetricError(SettingsError):
    """A metric has no value for these targets and predictions; the message says why."""


@dataclass(frozen=True)
class MetricFunction:
    """A metric with its function."""

    spec: str  # as the user has written it
    metric: Metric
    part: Part  # the function, and the options that the spec sets
    view: View  # what the function gets beside the targets

    @classmethod
    def of(cls, text: str) -> MetricFunction:
        """Return the metric that a spec names; SettingsError: there is none, or it has no such option."""
        spec = parse(KIND, text)
        is_bare, function = spec.name in SCIKIT_LEARN, function_of(spec.name)
        known_options, given = options_of(function), {k.replace("-", "_"): v for k, v in spec.options.items()}
        better = given.pop("better", "") if "better" not in known_options else ""
        if better not in ("", "higher", "lower"):
            raise SettingsError(f"{KIND} {text}: better is {better!r}; it must be higher or lower")
        part = Part(spec.name, function, convert(f"{KIND} {spec.name}", known_options, given), known_options)
        first, second = _first_two(spec.name, function)
        view: View = "preds" if (first, second) == ("preds", "target") else VIEWS.get(second, "outputs")
        is_share = False
        if is_bare:
            view = "probabilities" if function.__name__ in _PROBABILITIES else view
            is_share = function.__name__ in _SHARES and not given.keys() & _NOT_A_SHARE
        return cls(text, Metric.of(_name(spec), function, is_share, better), part, view)

    def value(self, targets: NDArray[Any], given: NDArray[Any], num_classes: int) -> float:
        """Return its value for all targets, as of `targets_of`, and what its `view` is.

        UndefinedMetricError: it is not finite, or scikit-learn warns that it is undefined. SettingsError:
        what the function returns is not one number.
        """
        from sklearn.exceptions import UndefinedMetricWarning

        options = dict(self.part.options)
        of_classes = self.view == "probabilities" and targets.ndim == 1
        if of_classes and self.part.name in SCIKIT_LEARN and self.part.takes("labels"):
            options["labels"] = np.arange(max(2, num_classes))  # some may be missing among the targets
        arguments: tuple[Any, Any] = (_read_only(targets), _read_only(given))  # also of the other metrics
        if self.view == "preds":
            import torch

            arguments = torch.tensor(given), torch.tensor(targets)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            value = self._number(self.part.factory(*arguments, **options))
        undefined = [str(w.message) for w in said if issubclass(w.category, UndefinedMetricWarning)]
        if undefined or not math.isfinite(value):
            raise UndefinedMetricError(undefined[0] if undefined else f"it is {value}")
        return value

    def _number(self, found: Any) -> float:
        shape = tuple(getattr(found, "shape", ()))
        try:
            if math.prod(shape) == 1 and not isinstance(found, str):
                return float(found)
        except (TypeError, ValueError):
            pass
        what = f"an array of shape {shape}" if shape else f"a {type(found).__name__}"
        advice = "; set average=macro, for example" if "average" in self.part.known else ""
        raise SettingsError(f"it gives {what}, and a metric is one number{advice}")


def metric_functions(specs: Sequence[str]) -> tuple[MetricFunction, ...]:
    """Return the metrics that specs name; SettingsError: one is invalid, or would hide what records have."""
    functions: dict[str, MetricFunction] = {}
    for spec in specs:
        found = MetricFunction.of(spec)
        key = found.metric.key
        if key in functions:
            raise SettingsError(f"{KIND}: {functions[key].spec} and {spec} are both recorded as {key}")
        if key in RECORDED or key.startswith(OF_CLIENTS):
            raise SettingsError(f"{KIND} {spec}: records have a {key!r} of their own; rename the function")
        functions[key] = found
    return tuple(functions.values())


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of a metric; SettingsError: there is none of this name."""
    if name in SCIKIT_LEARN:
        return SCIKIT_LEARN[name]
    if not dotted.is_dotted(KIND, name):
        hint = did_you_mean(name, SCIKIT_LEARN) or "; one of your own has a dot in its name"
        raise SettingsError(f"{KIND}: unknown metric {name!r}; known: {', '.join(SCIKIT_LEARN)}{hint}")
    found: Callable[..., Any] = dotted.load(KIND, name)
    return found


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a metric, by name: its parameters after the second one."""
    options: dict[str, Option] = {}
    for p in [*inspect.signature(function).parameters.values()][2:]:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in _ARRAYS:
            declared = {} if p.annotation is p.empty else as_options([p])
            options[p.name] = next(iter(declared.values()), _Untyped(p.name, str, p.default))
    return options


def targets_of(criterion: Criterion, targets: NDArray[Any]) -> NDArray[Any]:
    """Return targets as metrics get them: shape (n,), or (n, C) for several numbers or labels of an example.

    Numbers are in the unit that they had before the task standardised them, and each position of a sequence
    is an example; padding is none.
    """
    if np.issubdtype(targets.dtype, np.integer):
        found: NDArray[Any] = targets[targets != IGNORED]
        return found
    several = _narrow(targets.reshape(len(targets), -1))
    return criterion.original(several) if criterion.predicts_numbers(targets) else several.astype(np.int64)


def positions_of(targets: NDArray[Any]) -> NDArray[np.intp]:
    """Return how many examples each target is to metrics, shape (n,): see `targets_of`."""
    if np.issubdtype(targets.dtype, np.integer):
        counts: NDArray[np.intp] = (targets.reshape(len(targets), -1) != IGNORED).sum(axis=1)
        return counts
    return np.ones(len(targets), np.intp)


def view_of(view: View, criterion: Criterion, outputs: Tensor, targets: Tensor) -> NDArray[Any]:
    """Return what a metric of this view gets of a batch, in the order of `targets_of`.

    SettingsError: it needs probabilities, or losses of classes, and there are none.
    """
    numbers, classes = criterion.predicts_numbers(targets), not targets.is_floating_point()
    outputs = outputs.float() if outputs.element_size() < 4 else outputs  # NumPy has no bfloat16
    if numbers and view == "probabilities":
        raise SettingsError("it takes probabilities, and the task predicts numbers")
    if view == "losses":
        if not classes:
            raise SettingsError("it is of classes, and the task has none")
        from torch.nn import functional

        found = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    elif view == "labels" or (view == "preds" and numbers):
        found = criterion.predictions(outputs, targets)
        found = found.flatten() if classes else found.flatten(1) if found.dim() > 1 else found[:, None]
    else:
        found = outputs if view == "outputs" else criterion.probabilities(outputs)
        found = found.flatten(0, -2) if classes else found.flatten(1) if found.dim() > 1 else found[:, None]
        if classes and view != "outputs" and found.shape[1] == 2:
            found = found[:, 1]
    if classes and targets.dim() > 1:
        found = found[targets.flatten() != IGNORED]
    array = found.cpu().numpy()
    array = array if classes else _narrow(array)
    return criterion.original(array) if numbers else array


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of an array that cannot be changed."""
    view = array.view()
    view.flags.writeable = False
    return view


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of one column, shape (n, 1), as one of shape (n,)."""
    return array[:, 0] if array.shape[1] == 1 else array


def _first_two(name: str, function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's first two parameters; SettingsError: it has none."""
    own = inspect.signature(function).parameters.values()
    names = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(names) < 2:
        advice = "(y_true, y_pred), (y_true, y_score) or (y_true, outputs)"
        raise SettingsError(f"{KIND} {name} takes {', '.join(names) or 'nothing'}; it has to take {advice}")
    return names[:2]


class _Untyped(Option):
    """An option of a function that does not declare its type: a number, true or false, else text."""

    def parse(self, text: str, where: str = "") -> Any:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        for kind in (int, float):
            with suppress(ValueError):
                return kind(text)
        return text


def _name(spec: Spec) -> str:
    """Return the name of a metric: the last word of the function's, and the values of its options."""
    own = dotted.shown(spec.name).rpartition(".")[2]
    values = (value for key, value in spec.options.items() if key != "better")
    return "_".join(re.sub(r"[^\w.]+", "_", text) for text in (own, *values))
