"""The model of a run as a file for other programs: `fedtide export RUN --to onnx`.

Each file is read again where that is possible, and has to give the outputs of the run's model.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.display import command
from fedtide.base.errors import SettingsError
from fedtide.base.files import check_replaceable, making, replacing
from fedtide.base.wording import ends as ends_of
from fedtide.engine.read_run import Run, consistent, read_run
from fedtide.tasks.language_models import quietly

if TYPE_CHECKING:
    import torch
    from torch import nn

PROG = "fedtide export"
FOLDERS = ("transformers", "peft")  # what these formats are
EXAMPLES = 3  # from which the file is made; it is compared on others
CLOSE = 1e-4  # relative to the largest output

Outputs = Callable[["torch.Tensor"], NDArray[Any]]


def export(run: Run, to: str, path: Path) -> None:
    """Write the model of a run in one of `FORMATS`, to a file, or for `FOLDERS` to a new folder.

    SettingsError: the run has no model, the model cannot be written so, or the file gives other outputs.
    OSError: the file cannot be written.
    """
    import torch

    with consistent([run.path]):
        model, ends = run.model(), run.ends
    rng = torch.Generator().manual_seed(0)

    def examples(count: int) -> torch.Tensor:
        shape = (count, *ends.input_shape)
        if ends.vocabulary:
            return torch.randint(ends.vocabulary, shape, generator=rng)
        return torch.randn(shape, generator=rng)

    in_folder = to in FOLDERS
    if in_folder and path.exists():
        raise SettingsError(f"{to}: {path} exists; name a new folder (--output)")
    if not in_folder:
        check_replaceable(path)
    with making(path) if in_folder else replacing(path) as partial, torch.no_grad():
        read = FORMATS[to](run, model, examples(EXAMPLES), partial)
        unseen = [examples(1), examples(7) if ends.vocabulary else -3 * examples(2 * EXAMPLES)]
        for given in unseen:
            expected = model(given).numpy()
            try:
                found = read(given)
            except RuntimeError as error:
                raise SettingsError(f"{to}: {len(given)} examples: {ends_of(error)}") from None
            off = float(np.abs(found - expected).max())
            if not off <= CLOSE * max(1.0, float(np.abs(expected).max())) < math.inf:
                raise SettingsError(
                    f"{to}: the file gives outputs that differ by {off:.3g} from the model's; has it buffers "
                    "that no state_dict has (persistent=False)?"
                )


def _arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def _restored(run: Run, state: dict[str, Any]) -> Outputs:
    """Return what a new model gives with a state that was read."""
    import torch

    model = run.initial_model().eval()
    model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    return lambda example: np.asarray(model(example).detach())


def _numpy(run: Run, model: nn.Module, example: torch.Tensor, path: Path) -> Outputs:
    with path.open("wb") as file:
        arrays: dict[str, Any] = _arrays(model)
        np.savez(file, **arrays)
    with np.load(path) as read:
        return _restored(run, dict(read))


def _safetensors(run: Run, model: nn.Module, example: torch.Tensor, path: Path) -> Outputs:
    from safetensors.numpy import load_file, save_file

    save_file({name: np.ascontiguousarray(value) for name, value in _arrays(model).items()}, path)
    return _restored(run, load_file(path))


def _torchscript(run: Run, model: nn.Module, example: torch.Tensor, path: Path) -> Outputs:
    import torch

    with warnings.catch_warnings():  # newer PyTorch recommends formats that the boards' one cannot read
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.save(torch.jit.trace(model, example), path)  # type: ignore[no-untyped-call]
        read = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return lambda given: np.asarray(read(given).detach())


def _onnx(run: Run, model: nn.Module, example: torch.Tensor, path: Path) -> Outputs:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - PyTorch needs it
    except ModuleNotFoundError as error:
        raise SettingsError(f"onnx needs {error.name}: pip install onnx onnxscript onnxruntime") from None
    import torch

    torch.onnx.export(
        model,
        (example,),
        path,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("examples")},),
        external_data=False,
        verbose=False,
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda given: np.asarray(session.run(None, {"input": given.numpy()})[0])


def _pretrained(to: str, run: Run, model: nn.Module, example: torch.Tensor, path: Path) -> Outputs:
    """Write a language model to a folder as transformers has it, or its adapters as peft does."""
    import torch

    from fedtide.tasks.modules import LanguageModel

    if not isinstance(model, LanguageModel):
        raise SettingsError(f"{to}: it is for language models, --model hf-lm")
    with quietly(to):
        if to == "peft":
            from peft import AutoPeftModelForCausalLM as Auto

            model.save_adapters(path)
        else:
            from transformers import AutoModelForCausalLM as Auto

            model.save_merged(path)
        read = Auto.from_pretrained(path, dtype=torch.float32)  # what the run trains, whatever the files have
    return lambda given: np.asarray(read(given).logits)


FORMATS: dict[str, Callable[[Run, nn.Module, torch.Tensor, Path], Outputs]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
    "numpy": _numpy,
    **{to: partial(_pretrained, to) for to in FOLDERS},
}
SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors", "numpy": ".npz"}


@command(PROG)
def main(argv: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog=PROG, description="Write the model of a run for other programs.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--to", choices=FORMATS, default="onnx", help="format (onnx)")
    parser.add_argument(
        "--output", metavar="FILE", help="default: model.onnx and so on, here; a folder of transformers, peft"
    )
    parser.add_argument("--trust", action="store_true", help="import parts that only the folder names")
    options = parser.parse_args(argv)
    path = Path(options.output or f"model{SUFFIXES.get(options.to, '')}")
    with consistent([options.run]):
        run = read_run(Path(options.run), options.trust)
    export(run, options.to, path)
    print(path)
