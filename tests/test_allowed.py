"""What options may be: read from annotations, checked, and said in words."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

from fedtide.base.allowed import REQUIRED, Checked, Count, Positive, Range, Share, checked, options_of
from fedtide.tasks import MODELS, PARTITIONS, SIZES, TASKS
from traces import TRACES

if TYPE_CHECKING:
    from elsewhere import Unknown


@dataclass(frozen=True, kw_only=True)
class Base(Checked):
    rate: Positive = 1.0
    mode: Literal["fast", "slow"] = "fast"


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    other: Unknown | None = None
    padding: Literal[0, 2] = 0
    share: Annotated[float, Range(least=0, below=1)] = 0.5
    note: Annotated[int, "a prime"] = 7
    big: Annotated[int, Range(least=1, most=1_000_000_000)] = 1
    on: bool = True


@checked
def function(count: Count, *, share: Share = 0.5) -> tuple[int, float]:
    return count, share


def test_options_are_what_annotations_say() -> None:
    """Also where another annotation of the class cannot be resolved."""
    assert {key: option.allowed for key, option in options_of(Derived).items()} == {
        "rate": "positive",
        "mode": "fast | slow",
        "padding": "0 | 2",
        "share": "at least 0 and below 1",
        "note": "a prime",
        "big": "from 1 to 1000000000",
        "on": "true | false",
    }
    assert list(options_of(function)) == ["share"]
    assert options_of(Derived)["padding"].parse("2") == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rate": 0}, "rate is 0; it must be positive"),
        ({"rate": float("nan")}, "rate is nan; it must be a finite number"),
        ({"rate": "1"}, "rate is '1'; it must be a number"),
        ({"rate": True}, "rate is True; it must be a number"),
        ({"mode": "slo"}, "mode is 'slo'; choose one of fast, slow; did you mean slow?"),
        ({"mode": 3}, "mode is 3; it must be text"),
        ({"padding": 1}, "padding is 1; choose one of 0, 2"),
        ({"share": 1.0}, "share is 1.0; it must be at least 0 and below 1"),
        ({"big": 2 * 10**9}, "big is 2000000000; it must be from 1 to 1000000000"),
        ({"on": 1}, "on is 1; it must be true or false"),
    ],
)
def test_values_that_are_not_allowed(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        Derived(**values)
    assert str(refusal.value) == says


@pytest.mark.parametrize("registry", [TASKS, MODELS, SIZES, PARTITIONS, TRACES], ids=range(5))
def test_registered_factories(registry: dict[str, Any]) -> None:
    """Options can be read from their signatures, and what is not allowed is refused."""
    for factory in registry.values():
        assert (factory.__doc__ or "").splitlines()[0].endswith(".")
        parameters = inspect.signature(factory).parameters.values()
        given = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        from_data = [p for p in parameters if p.name in ("label_shares", "client_names", "absent")]
        options = options_of(factory)
        assert len(options) + len(given) + len(from_data) == len(parameters)
        needed: dict[str, Any] = {o.parameter: "x" for o in options.values() if o.default is REQUIRED}
        needed |= {p.name: np.ones((5, 2)) for p in from_data if p.default is REQUIRED}
        for name, option in options.items():
            assert option.parameter in needed or type(option.default) is option.kind
            if option.choices or isinstance(option.bounds, Range):
                wrong = {option.parameter: "nonesuch" if option.choices else -2}
                with pytest.raises(ValueError, match=f"^{name} is "):
                    factory(*[5] * len(given), **needed | wrong)


def test_functions_check_their_arguments() -> None:
    assert function(np.int64(3), share=np.float32(0.25)) == (3, 0.25)
    for call in (lambda: function(0), lambda: function(count=0), lambda: function(1, share=2)):
        with pytest.raises(ValueError, match=r"(count is 0|share is 2); it must be"):
            call()
