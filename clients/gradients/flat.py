"""A PyTorch model whose weights are one vector: what rules update in one operation, and clients send."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from clients.gradients.precision import BFLOAT16, computing
from clients.gradients.random_layers import with_draws
from clients.gradients.tensors import require_one_type, require_own_memory
from fedtide.base.errors import SettingsError
from fedtide.tasks import CROSS_ENTROPY, Criterion

_BLOCK = 1 << 22  # numbers in the per-example gradients that are computed in one call
SAME = 1e-4  # the difference of checksums up to which frozen weights are the same, a share of their norm


def _ignore_alignment() -> None:
    """Have MKL, which multiplies for PyTorch on x86, round alike for matrices at any address.

    Its fastest kernels for processors other than Intel's sum small products in an order that depends on the
    address modulo 64 bytes, which depends on who else is in a cohort. Its mode for reproducible results
    (`MKL_CBWR`) does not. MKL reads the variable when it is first used; a value that the user has set stays.
    """
    about = Path("/proc/cpuinfo")
    if "GenuineIntel" not in (about.read_text(errors="replace") if about.exists() else platform.processor()):
        os.environ.setdefault("MKL_CBWR", "AUTO")


_ignore_alignment()  # all that trains imports this module before its first product

if hasattr(os, "register_at_fork"):
    # A process that was forked has none of its parent's threads, and OpenMP would wait for them.
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the array's memory; do not write to it if the array is read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: more do not help small models, and results must not depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Leave PyTorch's generators as they are, whatever is drawn."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        yield


def frozen_parts(module: nn.Module) -> list[nn.Module]:
    """Return the submodules that have weights, none of which requires a gradient, and all within them."""
    weights = ((part, [p.requires_grad for p in part.parameters()]) for part in module.modules())
    whole = [part for part, trained in weights if trained and not any(trained)]
    return [*dict.fromkeys(inner for part in whole for inner in part.modules())]


def frozen_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights that do not require a gradient."""
    return [weight for weight in module.parameters() if not weight.requires_grad]


def exchanged(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that server and clients exchange, by name.

    They are the weights that require a gradient, and after them the floating-point buffers, without empty
    ones and those of frozen parts, which do not change.
    """
    fixed = {id(buffer) for part in frozen_parts(module) for buffer in part.buffers()}
    buffers = ((name, b) for name, b in module.named_buffers() if b.is_floating_point() and b.numel())
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {**trained, **{name: b for name, b in buffers if id(b) not in fixed}}


class _Buffer(NamedTuple):
    """A buffer, and where a module has it: `forward` may set another tensor in its place."""

    owner: nn.Module
    name: str
    tensor: Tensor

    @classmethod
    def of(cls, module: nn.Module, names: Iterable[str]) -> list[_Buffer]:
        """Return a module's buffers of these names."""
        paths, owners = [path.rpartition(".") for path in names], dict(module.named_modules())
        return [cls(owners[path], name, getattr(owners[path], name)) for path, _, name in paths]

    def collect(self) -> None:
        """Take over the values of a tensor that was set in its place."""
        other: Tensor = getattr(self.owner, self.name)
        if other is not self.tensor:
            self.tensor.copy_(other.detach())
            self.put_back()

    def put_back(self) -> None:
        """Give the module this tensor."""
        setattr(self.owner, self.name, self.tensor)  # a scripted module takes them in no other way


class FlatModel:
    """A module whose tensors become views of one vector, and its gradients views of another.

    `vector`, shape (M,), has the trainable tensors, `num_trainable` numbers, then the floating-point buffers,
    which are the last `num_buffers` of the tensors; `shapes` are those of all of them. Frozen weights, of
    which there are `num_frozen`, stay as the module has them, and so do the buffers of frozen parts, which
    are in evaluation mode at all times. Other buffers, such as counts, are not exchanged: every client starts
    with those of the module as it was made. `precision` is that of the layers in training. ValueError: the
    module has no weights that are trained, or tensors of several types, or of one that NumPy lacks or that
    does not go with the precision.
    """

    def __init__(
        self,
        module: nn.Module,
        device: str | torch.device = "cpu",
        criterion: Criterion = CROSS_ENTROPY,
        precision: str = "float32",
    ) -> None:
        self.module, self.criterion, self.precision = module.to(device), criterion, precision
        self.random = with_draws(module)
        sent, self.frozen_parts = exchanged(module), frozen_parts(module)
        trainable = [tensor for tensor in sent.values() if tensor.requires_grad]
        if not trainable:
            raise SettingsError("the model has no weights that require a gradient: there is nothing to train")
        require_one_type(sent)
        require_own_memory(module)
        self.names, self._tensors = [*sent], [*sent.values()]
        self.num_buffers = len(sent) - len(trainable)
        self._buffers = _Buffer.of(module, self.names[len(trainable) :])
        inert = {id(buffer) for part in self.frozen_parts for buffer in part.buffers()}
        own = (name for name, b in module.named_buffers() if name not in sent and id(b) not in inert)
        self._unsent = [(buffer, buffer.tensor.clone()) for buffer in _Buffer.of(module, own)]
        self._frozen = frozen_weights(module)
        self.num_frozen = sum(p.numel() for p in self._frozen)
        self.shapes = tuple(tuple(t.shape) for t in self._tensors)
        self._sizes = [t.numel() for t in self._tensors]
        self.num_trainable = sum(t.numel() for t in trainable)
        self.vector = torch.cat([t.detach().reshape(-1) for t in self._tensors])
        self._gradient = torch.zeros_like(self.vector)
        self._grads = [*zip(trainable, self.views(self._gradient), strict=False)]
        for tensor, part in self._grads:
            tensor.grad = part
        self.bind(self.vector)
        self.train()
        if precision == BFLOAT16 and self.vector.dtype != torch.float32:
            raise SettingsError(f"precision bfloat16 is for models of float32, not {self.vector.dtype}")

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.vector.device

    @property
    def generator(self) -> torch.Generator:
        """What the model draws from."""
        if self.device.type == "cpu":
            return torch.default_generator
        return torch.cuda.default_generators[self.device.index or 0]

    def train(self) -> None:
        """Return to training mode, except in frozen parts."""
        self.module.train()
        for part in self.frozen_parts:
            part.training = False

    @cached_property
    def frozen_checksum(self) -> float:
        """A weighted sum of the frozen weights, the same at the server; 0 if there are none."""
        return self._frozen_sums[0]

    def check_frozen(self, checksum: float) -> None:
        """Raise ValueError if the frozen weights of another model have another checksum; 0: it is not known.

        Their last bits may differ, as between processors.
        """
        if checksum and abs(checksum - self.frozen_checksum) > SAME * self._frozen_sums[1]:
            raise SettingsError(
                "the frozen weights are not those of the server: give both the same pretrained weights"
            )

    @cached_property
    def _frozen_sums(self) -> tuple[float, float]:
        """The weighted sum of the frozen weights, and their norm."""
        total, squares, start = 0.0, 0.0, 0
        for tensor in self._frozen:
            for part in torch.split(tensor.detach().reshape(-1), _BLOCK):
                values = part.double().cpu().numpy()
                total += float(values @ np.cos(np.arange(start, start + len(values))))
                squares, start = squares + float(values @ values), start + len(values)
        return total, squares**0.5

    def views(self, vector: Tensor) -> list[Tensor]:
        """Split a vector of shape (M,) into one view per tensor."""
        parts = torch.split(vector, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def bind(self, vector: Tensor) -> None:
        """Make the model's tensors views of a vector of shape (M,)."""
        self._bound, self._views = vector, self.views(vector)
        for tensor, part in zip(self._tensors, self._views, strict=True):
            tensor.data = part
        for buffer in self._buffers:
            buffer.put_back()

    def reset(self) -> None:
        """Give the buffers that are not exchanged their first values: no client has those of another."""
        for buffer, value in self._unsent:
            buffer.tensor.copy_(value)
            buffer.put_back()

    def split(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Split a vector of shape (M,), or one with the buffers alone, into one array per tensor."""
        first = 0 if len(vector) == len(self.vector) else len(self.shapes) - self.num_buffers
        parts = np.split(vector, np.cumsum(self._sizes[first:])[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes[first:], strict=True)]

    def arrays(self) -> list[NDArray[Any]]:
        """Return copies of the tensors, in the order of the vector."""
        return self.split(self.vector.cpu().numpy().copy())

    def load(self, vector: NDArray[Any] | Tensor) -> None:
        """Set all weights, shape (M,)."""
        self.vector.copy_(vector if isinstance(vector, Tensor) else as_tensor(vector))
        self.bind(self.vector)
        self.reset()

    def gradient(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the gradient and the value of the mean loss of a batch at weights `y`, shape (M,).

        The model's tensors become views of `y`, whose buffers, such as running means, change. The next call
        overwrites the gradient.
        """
        if y.data_ptr() != self._bound.data_ptr():
            self.bind(y)
        self._gradient.zero_()
        inputs, targets = examples
        with computing(self.precision, self.device):
            outputs = self.module(inputs)
        loss = self.criterion.mean(outputs.to(self.vector.dtype), targets)
        drawn = self.random.calls
        loss.backward()  # type: ignore[no-untyped-call]
        if self.random.calls != drawn:
            raise SettingsError(
                "the model computes activations again in the backward pass, and its dropout would draw other "
                "masks: turn activation checkpointing off"
            )
        for tensor, part in self._grads:
            if tensor.grad is not part:  # the model, or a hook of its weights, has set another
                part.zero_() if tensor.grad is None else part.copy_(tensor.grad)
                tensor.grad = part
        for tensor, part in zip(self._tensors, self._views, strict=True):
            if tensor.data_ptr() != part.data_ptr():  # `forward` has set `weight.data`, as to limit its norm
                part.copy_(tensor.data)
                tensor.data = part
        for buffer in self._buffers:
            buffer.collect()
        return self._gradient, loss.detach()

    def draws(self, inputs: Tensor) -> bool:
        """Try whether the model draws from PyTorch's generator in training, as for dropout in an LSTM.

        Its random layers draw elsewhere, see `random`.
        """
        kept = self.vector.clone()
        self.bind(self.vector)
        with own_draws(self.device), torch.no_grad():
            before = self.generator.get_state()
            self.random.begin(0, self.device)
            try:
                self.module(inputs)
            except Exception:
                return False  # it cannot be trained at all, which shows when it is tried
            finally:
                self.random.begin(None, self.device)
                self.load(kept)
            return not torch.equal(before, self.generator.get_state())

    def mixes(self, inputs: Tensor) -> bool:
        """Try, with the first of the inputs, whether outputs depend on the other examples of a batch.

        The model has no buffers and draws nothing but masks.
        """
        self.bind(self.vector)
        x, outputs = inputs[:1], []
        with torch.no_grad():
            for beside in (x, torch.ones_like(x)):
                self.random.begin(0, self.device)
                outputs.append(self.module(torch.cat([x, beside]))[0])
        self.random.begin(None, self.device)
        one, other = outputs
        return not torch.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True)

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Return the diagonal of the empirical Fisher information: the mean squared per-example gradient.

        It has shape (M,), as the weights `y`, and is zero for buffers. The model is in evaluation mode.
        """
        tensors = dict(zip(self.names, self.views(y.clone()), strict=True))  # `forward` may limit weights
        names = self.names[: len(tensors) - self.num_buffers]
        parameters = {name: tensors.pop(name) for name in names}

        def loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.module, {**parameters, **tensors}, (x[None],))
            return self.criterion.mean(outputs, target[None])

        inputs, targets = examples
        block = max(1, _BLOCK // max(1, len(self.vector)))
        diagonal = torch.zeros_like(self.vector)
        with self._evaluating():
            for x, target in zip(torch.split(inputs, block), torch.split(targets, block), strict=True):
                gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, target)
                squares = [gradients[name].square().sum(dim=0).reshape(-1) for name in parameters]
                diagonal[: self.num_trainable] += torch.cat(squares)
        return diagonal / len(targets)

    def fisher_by_example(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """Return the same by autograd, for models that `torch.func` does not take."""
        inputs, targets = examples
        diagonal, kept = torch.zeros_like(self.vector), y.clone()
        with self._evaluating():
            for k in range(len(targets)):
                diagonal += self.gradient(kept, (inputs[k : k + 1], targets[k : k + 1]))[0].square()
        return diagonal / len(targets)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Have the module in evaluation mode, whatever happens."""
        training = self.module.training
        self.module.eval()
        try:
            yield
        finally:
            if training:
                self.train()
