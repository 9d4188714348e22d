"""Language models of transformers, whole and with adapters, against transformers and peft themselves."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL
from hypothesis import given
from hypothesis import strategies as st

import fedtide
from clients.draws import BatchIndices
from clients.gradients.batches import CohortBatches
from clients.gradients.flat import FlatModel
from clients.gradients.oracles import ORACLES
from clients.simulated.evaluation import check_outputs
from fedtide.api.export import FOLDERS, main
from fedtide.base.errors import SettingsError
from fedtide.base.sources import _files_of
from fedtide.config import Settings
from fedtide.engine.memory_check import check_round
from fedtide.engine.run_folder import weights_sha256
from fedtide.federation import Federation
from fedtide.tasks.criteria import IGNORED
from fedtide.tasks.language import Blocks, next_tokens

peft = pytest.importorskip("peft")

from language import TOKENS, write_model, write_texts  # noqa: E402 - they need transformers
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

pytestmark = pytest.mark.xdist_group("language")  # transformers takes seconds to import
LENGTH = 16
FEW = {k: v for k, v in SMALL.items() if k != "model"}
FEW |= {"num_clients": 4, "batch_size": 3, "learning_rate": 0.5, "trace": "bernoulli:p=0.7"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and texts."""
    folder = tmp_path_factory.mktemp("language")
    for kind in ("gpt2", "llama"):
        write_model(folder / kind, kind)
    write_texts(folder / "texts")
    return folder


def spec(place: Path, kind: str, lora: int = 0) -> dict[str, str]:
    task = f"text:{place / 'texts'},tokenizer={place / kind},length={LENGTH}"
    return {"task": task, "model": f"hf-lm:{place / kind}" + f",lora={lora}" * bool(lora)}


def federation(place: Path, kind: str, lora: int = 0) -> Federation:
    return Federation.of(Settings(num_clients=4, **spec(place, kind, lora)))


@given(st.lists(st.integers(1, 50)), st.integers(1, 9))
def test_each_token_but_the_first_is_predicted_once(tokens: list[int], length: int) -> None:
    blocks = Blocks.cut(np.array(tokens, np.int32), length)
    x, y = next_tokens(blocks)
    assert x.shape == y.shape == (-(-max(0, len(tokens) - 1) // length), length)
    real = y != IGNORED
    assert y[real].tolist() == tokens[1:]
    assert x[real].tolist() == tokens[:-1]
    assert real[:-1].all()  # only the last block is padded
    assert (np.diff(real.astype(int)) <= 0).all()  # at its end


def theirs(place: Path, kind: str, model: FlatModel, w: torch.Tensor, lora: int) -> Any:
    """Return transformers' own model, with the adapters of peft, at weights `w`."""
    module = AutoModelForCausalLM.from_pretrained(
        place / kind, dtype=torch.float64, attn_implementation="eager"
    )
    if lora:
        config = peft.LoraConfig(task_type="CAUSAL_LM", r=lora, lora_alpha=2 * lora)
        module = peft.get_peft_model(module, config, autocast_adapter_dtype=False)
    own = {name.removeprefix("model."): part for name, part in zip(model.names, model.views(w), strict=True)}
    assert not module.load_state_dict(own, strict=False).unexpected_keys
    return module.double()


def gradient_of(module: Any, blocks: Sequence[list[int]]) -> torch.Tensor:
    """Return the gradient of transformers' loss of blocks, padded and masked as its users do that."""
    width = max(map(len, blocks))
    given = torch.tensor([[*own, *[3] * (width - len(own))] for own in blocks])
    mask = torch.tensor([[1] * len(own) + [0] * (width - len(own)) for own in blocks])
    labels = torch.where(mask == 1, given, -100)
    module.zero_grad()
    module(input_ids=given, attention_mask=mask, labels=labels).loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("lora", [0, 2])
def test_gradients_are_those_of_transformers(place: Path, kind: str, lora: int) -> None:
    """Every oracle, for clients alone and together, whose blocks have different numbers of tokens.

    Transformers computes losses and norms in single precision.
    """
    found = federation(place, kind, lora)
    model = FlatModel(found.model_builder()().double(), criterion=found.data.criterion)
    rng = np.random.default_rng(0)
    lengths = [(17, 17, 5), (2, 9)]
    blocks = [[rng.integers(1, 50, n).tolist() for n in of_client] for of_client in lengths]
    w = model.vector + torch.from_numpy(0.1 * rng.normal(size=(2, len(model.vector))))
    expected = torch.stack(
        [gradient_of(theirs(place, kind, model, at, lora), own) for at, own in zip(w, blocks, strict=True)]
    )
    padded = np.array([[*own, *[0] * (17 - len(own))] for of_one in blocks for own in of_one], np.int32)
    there = np.array([len(own) for of_one in blocks for own in of_one], np.int32)
    x, y = map(torch.from_numpy, next_tokens((padded, there)))
    drawn = [BatchIndices(np.arange(3), np.array([3])), BatchIndices(np.arange(3, 5), np.array([2]))]
    batch = CohortBatches(x, y, drawn, torch.float64, criterion=model.criterion).step(0)
    can = set()
    for name, make in ORACLES.items():
        try:
            oracle = make(model)
        except SettingsError:
            continue
        can.add(name)
        oracle.check((x.numpy(), y.numpy()))
        gradients, _ = oracle.gradient(w.clone(), batch)
        assert ((gradients - expected).norm(dim=1) < 1e-6 * expected.norm(dim=1)).all(), name
        for k in range(2):
            one = CohortBatches(x, y, drawn[k : k + 1], torch.float64, criterion=model.criterion).step(0)
            alone, _ = oracle.gradient(w[k : k + 1].clone(), one)
            assert (alone[0] - expected[k]).norm() < 1e-6 * expected[k].norm(), name
    assert {"loop"} <= can <= {"loop", "vmap"}  # which GPT-2 of older versions has buffers for
    assert [name for name in model.names if "rotary" in name] == []


def test_perplexity_is_of_all_tokens(place: Path) -> None:
    """Of the test set, and of groups of clients: not a mean over blocks, which have different numbers."""
    run = fedtide.run(
        progress=False,
        report=False,
        evaluate_clients=3,
        run_dir=str(place / "runs"),
        **spec(place, "llama", 2),
        **FEW,
    )
    module, data = run.model(), federation(place, "llama").data

    def measured(x: Any, y: Any) -> tuple[float, float]:
        with torch.no_grad():
            logits = module(torch.from_numpy(x))
        real = y != IGNORED
        losses = -logits.log_softmax(-1).numpy()[real][np.arange(real.sum()), y[real]]
        return float(losses.mean()), float((logits.argmax(-1).numpy()[real] == y[real]).mean())

    loss, accuracy = measured(*data.test)
    last, final = run.records[-1], run.summary["final"]
    assert last["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert final["loss"] == pytest.approx(loss, rel=1e-5)
    assert final["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    held = Federation.of(Settings(num_clients=4, evaluate_clients=3, **spec(place, "llama", 2))).data
    groups = [named for named in last["groups"]["participation"].values() if named["clients"] == 4]
    loss, accuracy = measured(*held.holdout(np.arange(4)))
    for own in groups:
        assert own["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
        assert own["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    total, _ = measured(*held.train_set(np.arange(4)))
    assert final["train_loss"] == pytest.approx(total, rel=1e-5)


def test_a_resumed_run_is_the_same_to_the_bit(place: Path) -> None:
    settings = FEW | spec(place, "gpt2", 2) | {"strategy": "mifa", "report": False, "progress": False}
    settings |= {"run_dir": str(place / "runs")}
    whole = fedtide.run(**settings | {"num_rounds": 4})
    part = fedtide.run(**settings | {"num_rounds": 2})
    resumed = fedtide.run(resume=part.path, num_rounds=4, progress=False)
    assert weights_sha256(resumed.weights) == weights_sha256(whole.weights)
    assert resumed.records[-1]["perplexity"] == whole.records[-1]["perplexity"]


def test_only_adapters_are_sent_and_remembered(place: Path) -> None:
    settings = FEW | {"strategy": "mifa", "report": False, "progress": False, "num_rounds": 1}
    settings |= {"run_dir": str(place / "runs")}
    small, large = (fedtide.run(**settings, **spec(place, "llama", lora)) for lora in (2, 0))
    module = AutoModelForCausalLM.from_pretrained(place / "llama")
    assert large.summary["weights"] == sum(p.numel() for p in module.parameters())
    assert small.summary["frozen_weights"] == large.summary["weights"]
    # Queries have 16 inputs and outputs, values 16 and 8, in two layers.
    assert small.summary["weights"] == 2 * 2 * (16 + 16 + 16 + 8)
    remembered = [run.summary["state_bytes"] - 4 * run.summary["weights"] for run in (small, large)]
    assert remembered[0] < remembered[1] / 20
    sent = [sum(array.nbytes for array in run.weights) for run in (small, large)]
    assert sent == [4 * run.summary["weights"] for run in (small, large)]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_exported_models_are_those_of_transformers_and_peft(
    kind: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = AutoModelForCausalLM.from_pretrained(place / kind)
    shutil.copytree(place / kind, tmp_path / kind)
    base.to(torch.bfloat16).save_pretrained(tmp_path / kind)  # as most models are published
    base = AutoModelForCausalLM.from_pretrained(tmp_path / kind, dtype=torch.float32)
    settings = FEW | spec(place, kind, 2) | {"model": f"hf-lm:{tmp_path / kind},lora=2"}
    run = fedtide.run(**settings, report=False, progress=False, run_dir=str(tmp_path))
    x = torch.arange(1, 17).repeat(2, 1)
    with torch.no_grad():
        expected = run.model()(x)
        assert not torch.allclose(base(x).logits, expected, atol=1e-3)
        for to in FOLDERS:
            assert main([str(run.path), "--to", to, "--output", str(tmp_path / to)]) == 0
            folder = tmp_path / to
            read = AutoModelForCausalLM.from_pretrained(folder) if to == "transformers" else None
            read = read or peft.PeftModel.from_pretrained(base, folder)
            torch.testing.assert_close(read(x).logits, expected, rtol=1e-4, atol=1e-5)
    assert {path.name for path in (tmp_path / "peft").iterdir()} >= {"adapter_model.safetensors"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "transformers")
    assert tokenizer.encode("To be") == [TOKENS[character] for character in "To be"]
    assert main([str(run.path), "--to", "peft", "--output", str(tmp_path / "peft")]) == 2
    assert "peft exists; name a new folder" in capsys.readouterr().err


def test_frozen_weights_stay_in_the_files_of_the_model(tmp_path: Path) -> None:
    """A run reads them there again, and refuses others; random ones are in no file but that of the run."""
    write_texts(tmp_path / "texts")
    settings = FEW | {"report": False, "progress": False, "run_dir": str(tmp_path), "num_rounds": 2}
    found = {}
    for kind, weights in (("llama", True), ("gpt2", False)):
        write_model(tmp_path / kind, kind, weights)
        run = fedtide.run(**settings, **spec(tmp_path, kind, 2), keep_weights=1)
        found[kind] = run
        assert (run.path / "model.safetensors").exists() != weights
        assert ("frozen_sha256" in run.summary) == weights
        trained = [p for p in run.model().parameters() if p.requires_grad]
        for weight, array in zip(trained, run.weights, strict=True):
            np.testing.assert_array_equal(weight.detach(), array)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    frozen = [p for p in found["llama"].model(1).parameters() if p.numel() and not p.requires_grad]
    assert all(torch.equal(one, other) for one, other in zip(frozen, base.parameters(), strict=True))
    with torch.no_grad():
        next(base.parameters())[3, 2] += 1e-6
    base.save_pretrained(tmp_path / "llama")
    with pytest.raises(SettingsError, match=r"llama,lora=2 are not those of the run"):
        found["llama"].model()


def test_a_config_alone_makes_the_same_random_weights_everywhere(tmp_path: Path) -> None:
    write_model(tmp_path / "gpt2", "gpt2", weights=False)
    write_texts(tmp_path / "texts")
    made = [FlatModel(federation(tmp_path, "gpt2", 2).model_builder()()) for _ in range(2)]
    made[0].check_frozen(made[1].frozen_checksum)
    assert torch.equal(made[0].vector, made[1].vector)
    other = FlatModel(
        Federation.of(Settings(num_clients=4, seed=1, **spec(tmp_path, "gpt2", 2))).model_builder()()
    )
    with pytest.raises(SettingsError, match="the frozen weights are not those of the server"):
        other.check_frozen(made[0].frozen_checksum)


def test_hidden_files_are_no_clients(place: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", clients=2)
    (tmp_path / "texts" / "._role0.txt").write_text("as macOS leaves it " * 20)
    (tmp_path / "texts" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "texts" / ".ipynb_checkpoints" / "role0-checkpoint.txt").write_text("as Jupyter does " * 20)
    task = f"text:{tmp_path / 'texts'},tokenizer={place / 'gpt2'},length={LENGTH}"
    data = Federation.of(Settings(task=task, num_clients=2)).data
    assert data.client_names == ("role0", "role1")  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="set --num-clients 2"):
        _ = Federation.of(Settings(task=task, num_clients=3)).data


def test_texts_of_a_hugging_face_data_set(place: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [
        ("ann", "a", "To be!"),
        ("bob", "b", "Or not."),
        ("ann", "a", "To be, or not to be, that is it"),
    ] * 8
    columns = dict(zip(("user", "ward", "said"), map(list, zip(*rows, strict=True)), strict=True))
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "said")
    task = f"hf:{tmp_path / 'said'},text=said,client=user,group=ward,tokenizer={place / 'gpt2'},length=7"
    data = Federation.of(Settings(task=task, num_clients=2)).data
    x, y = data.examples(1, np.arange(1))
    expected = [TOKENS[character] for character in "Or not."] + [0]
    assert [*x[0], y[0, -1]] == expected
    assert data.client_names == ("ann", "bob")  # type: ignore[attr-defined]
    assert data.client_groups == ("a", "b")  # type: ignore[attr-defined]
    without = task.replace("client=user,group=ward,", "")
    divided = Federation.of(Settings(task=without, num_clients=3)).data
    assert divided.sizes.sum() == divided.train[1].size  # type: ignore[attr-defined]


def test_what_is_wrong_is_one_line(place: Path, tmp_path: Path) -> None:
    def refused(**changes: str) -> str:
        found = Federation.of(Settings(num_clients=4, **spec(place, "gpt2", 2) | changes))
        with pytest.raises(SettingsError) as error:
            found.model_builder()()
        assert "\n" not in str(error.value)
        return str(error.value)

    text = spec(place, "gpt2")["task"]
    assert "there are no files *.txt in" in refused(task=text.replace("texts", "no"))
    assert "there is no such folder" in refused(model=f"hf-lm:{place / 'nonesuch'}")
    assert "takes at most 17 tokens" in refused(task=text.replace("length=16", "length=18"))
    assert "it has adapters" in refused(model=_with(tmp_path / "a", place, "adapter_config.json", "{}"))
    custom = json.loads((place / "gpt2" / "config.json").read_text())
    custom |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Net"},
    }
    model = _with(tmp_path / "b", place, "config.json", json.dumps(custom))
    (tmp_path / "b" / "evil.py").write_text("raise SystemExit('executed')")
    assert "code of its own, which is never run" in refused(model=model)
    bert = {
        "model_type": "bert",
        "vocab_size": custom["vocab_size"],
        "hidden_size": 16,
        "num_hidden_layers": 1,
    }
    bert |= {"num_attention_heads": 2, "intermediate_size": 8}
    model = _with(tmp_path / "c", place, "config.json", json.dumps(bert))
    (tmp_path / "c" / "model.safetensors").unlink()
    assert "it is not causal" in refused(model=model)
    (tmp_path / "c" / "pytorch_model.bin").touch()
    assert "save them as safetensors" in refused(model=model)
    model = _with(tmp_path / "d", place, "config.json", json.dumps(bert | {"vocab_size": 9}))
    assert "has 9 tokens, and the task 59" in refused(model=model)
    assert "set lora" in refused(model=f"hf-lm:{place / 'gpt2'},alpha=2")
    assert "is for the tokens of a text" in refused(task="digits")
    assert "Target modules" in refused(model=f"hf-lm:{place / 'gpt2'},lora=2,layers=none")


def _with(folder: Path, place: Path, name: str, content: str) -> str:
    """Copy a model with another file in its folder; return the spec of the model."""
    folder.mkdir()
    for file in (place / "gpt2").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / name).write_text(content)
    return f"hf-lm:{folder}"


def test_a_model_of_ones_own_may_import_transformers() -> None:
    assert [*_files_of("transformers")] == []


def test_the_vectors_of_many_clients_are_said_before_the_run() -> None:
    """Of 1,000 clients with adapters of rank 8 of a model of a billion weights."""
    adapters = 4 * 851_968
    assert check_round(10, adapters, 0, kept=False, table=(0, 1000 * adapters)).startswith(
        "the vectors of all clients will take 3.2 GB"
    )


def test_a_model_that_predicts_once_for_a_text_is_refused(place: Path) -> None:
    found = Federation.of(Settings(num_clients=4, **spec(place, "gpt2", 2) | {"model": "lstm"}))
    model = FlatModel(found.model_builder()(), criterion=found.data.criterion)
    with pytest.raises(SettingsError, match="16 positions; take a model of sequences, such as hf-lm"):
        check_outputs(model, found.data)
