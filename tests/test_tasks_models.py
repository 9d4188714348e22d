import inspect
from functools import partial

import pytest
import torch

from flexfl.ground.allowed import options_of
from flexfl.tasks import MODELS, PARTITIONS, SIZES, TASKS, initialise


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"), [("logistic", 7850), ("mlp", 199_210), ("cnn", 1_663_370), ("lenet", 61_706)]
)
def test_parameter_counts_on_mnist(name, count):
    assert parameters(MODELS[name]((1, 28, 28), 10)) == count


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("lenet", {"padding": 0}, 62_006),  # PyTorch's CIFAR tutorial
        ("cnn3x3", {}, 551_786),
        ("cnn3x3", {"hidden": "512+256", "dropout": 0.2}, 1_193_130),
        ("vgg11", {}, 9_220_480 + 2 * 512 * 513 + 513 * 10),  # torchvision's convolutions
        ("resnet18", {"norm": "batch"}, 11_173_962),
        ("resnet50", {"norm": "batch"}, 23_520_842),
    ],
)
def test_parameter_counts_on_cifar(name, options, count):
    with torch.device("meta"):
        assert parameters(MODELS[name]((3, 32, 32), 10, **options)) == count


SMALL = {"vgg11": {"width": 2, "hidden": 3}, "resnet18": {"width": 2}, "resnet50": {"width": 1}}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "lstm"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (1, 4, 4), (1, 12, 9), (1, 13, 14)])
def test_models_give_logits(name, shape):
    assert MODELS[name](shape, 7, **SMALL.get(name, {}))(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_lstm_takes_characters_and_vectors_of_words():
    assert parameters(MODELS["lstm"]((80,), 80, vocabulary=80)) == 819_920
    characters = MODELS["lstm"]((5,), 7, vocabulary=9, hidden=4)
    assert characters(torch.full((2, 5), 8)).shape == (2, 7)
    words = MODELS["lstm"]((5, 3), 2, hidden=4, layers=1)
    assert words(torch.zeros(2, 5, 3)).shape == (2, 2)
    with pytest.raises(ValueError, match="inputs must be texts"):
        MODELS["lstm"]((1, 8, 8), 2)
    with pytest.raises(ValueError, match="the task has no vocabulary"):
        MODELS["lstm"]((60,), 2)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lenet", {"padding": 1}, "padding must be 0 or 2, not 1"),
        ("cnn3x3", {"hidden": "256-64"}, "hidden must be whole numbers"),
        ("cnn3x3", {"dropout": 1.0}, r"dropout must be in \[0, 1\), not 1"),
        ("vgg11", {"norm": "layer"}, "norm must be batch, group or none, not 'layer'"),
        ("vgg11", {"width": 0}, "width must be at least 1"),
        ("resnet18", {"width": 0}, "width must be at least 1"),
        ("lstm", {"hidden": 0}, "hidden and layers must be at least 1"),
    ],
)
def test_impossible_options(name, options, says):
    with pytest.raises(ValueError, match=f"model {name}: .*{says}"):
        MODELS[name]((1, 8, 8), 7, **options)


@pytest.mark.parametrize("name", ["cnn", "lenet", "cnn3x3", "vgg11", "resnet18"])
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
    assert TASKS[name](**needed).default_model.partition(":")[0] in MODELS
