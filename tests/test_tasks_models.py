import inspect
from functools import partial

import pytest
import torch

from flexfl.specs import options_of
from flexfl.tasks import MODELS, PARTITIONS, SIZES, TASKS, initialise


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"), [("logistic", 7850), ("mlp", 199_210), ("cnn", 1_663_370), ("lenet", 61_706)]
)
def test_parameter_counts_on_mnist(name, count):
    assert parameters(MODELS[name]((1, 28, 28), 10)) == count


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 4, 4), (1, 12, 9), (1, 13, 14)])
def test_models_give_logits(name, shape):
    assert MODELS[name](shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", ["cnn", "lenet"])
@pytest.mark.parametrize("shape", [(60,), (1, 3, 8)])
def test_convolutions_refuse_inputs_that_are_not_images(name, shape):
    with pytest.raises(ValueError, match=f"model {name}: inputs must be images"):
        MODELS[name](shape, 10)


def test_hidden_units():
    assert parameters(MODELS["mlp"]((60,), 10, hidden=5)) == 61 * 5 + 6 * 5 + 6 * 10
    with pytest.raises(ValueError, match="hidden must be at least 1"):
        MODELS["mlp"]((60,), 10, hidden=0)


def test_initial_parameters_depend_only_on_the_seed():
    build = partial(MODELS["mlp"], (60,), 10)
    torch.default_generator.manual_seed(1)
    before = torch.get_rng_state()
    one = initialise(build, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.default_generator.manual_seed(2)
    same, other = initialise(build, 3), initialise(build, 4)
    vector = torch.nn.utils.parameters_to_vector
    assert torch.equal(vector(one.parameters()), vector(same.parameters()))
    assert not torch.equal(vector(one.parameters()), vector(other.parameters()))


@pytest.mark.parametrize("registry", [TASKS, MODELS, SIZES, PARTITIONS])
def test_options_can_be_read_from_the_signatures(registry):
    for factory in registry.values():
        assert factory.__doc__.splitlines()[0].endswith(".")
        parameters = inspect.signature(factory).parameters.values()
        options = options_of(factory)
        assert len(options) == sum(p.kind is p.KEYWORD_ONLY for p in parameters)
        assert all(type(option.default) is option.kind for option in options.values())


@pytest.mark.parametrize("name", TASKS)
def test_default_models_exist(name):
    needed = {"csv": {"file": "homes.csv", "target": "price"}}.get(name, {})
    assert TASKS[name](**needed).default_model in MODELS
