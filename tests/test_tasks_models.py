from functools import partial

import pytest
import torch

from fedtide.tasks import MODELS, TASKS, initialise


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "shape", "count"),
    [
        ("logistic", {}, (1, 28, 28), 7850),
        ("mlp", {}, (1, 28, 28), 199_210),
        ("mlp", {"hidden": 5}, (60,), 61 * 5 + 6 * 5 + 6 * 10),
        ("cnn", {}, (1, 28, 28), 1_663_370),
        ("lenet", {}, (1, 28, 28), 61_706),
        ("lenet", {"padding": 0}, (3, 32, 32), 62_006),  # PyTorch's CIFAR tutorial
        ("cnn3x3", {}, (3, 32, 32), 551_786),
        ("cnn3x3", {"hidden": "512+256", "dropout": 0.2}, (3, 32, 32), 1_193_130),
        ("cnn3x3", {"norm": "group"}, (3, 32, 32), 551_914),
        ("vgg11", {}, (3, 32, 32), 9_220_480 + 2 * 512 * 513 + 513 * 10),  # torchvision's convolutions
        ("resnet18", {"norm": "batch"}, (3, 32, 32), 11_173_962),
        ("resnet50", {"norm": "batch"}, (3, 32, 32), 23_520_842),
    ],
)
def test_parameter_counts(name, options, shape, count):
    with torch.device("meta"):
        assert parameters(MODELS[name](shape, 10, **options)) == count


SMALL = {"vgg11": {"width": 2, "hidden": 3}, "resnet18": {"width": 2}, "resnet50": {"width": 1}}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("lstm", "hf-lm")])
def test_models_give_logits(name):
    for shape in ((1, 8, 8), (3, 32, 32), (1, 4, 4), (1, 12, 9), (1, 13, 14)):
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


def test_convolutions_refuse_inputs_that_are_not_images():
    for name in ("cnn", "lenet", "cnn3x3", "vgg11", "resnet18"):
        for shape in ((60,), (1, 3, 8)):
            with pytest.raises(ValueError, match=f"model {name}: inputs must be images"):
                MODELS[name](shape, 10)


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


def test_the_units_of_layers_are_numbers():
    with pytest.raises(ValueError, match="hidden is '256-64'; it must be whole numbers"):
        MODELS["cnn3x3"]((1, 8, 8), 7, hidden="256-64")


def test_default_models_exist():
    for name, task in TASKS.items():
        options = {"csv": {"file": "homes.csv", "target": "price"}, "hf": {"name": "homes"}}
        options |= {"npz": {"folder": "homes"}, "leaf": {"folder": "homes"}, "folder": {"path": "homes"}}
        options["text"] = {"folder": "homes", "tokenizer": "gpt"}
        assert task(**options.get(name, {})).default_model.partition(":")[0] in MODELS
