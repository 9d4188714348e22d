"""Ways to keep a GPU busy that fedtide does not take by itself: recorded steps, and several streams.

Both are for work of many short kernels, where the processor that starts them is the limit. A recorded step
(a CUDA graph) starts all of its kernels in one call; several streams let the kernels of several workers run
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from clients.gradients.batches import Batch
from clients.gradients.oracle import CohortOracle
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, VirtualClients

WARM_UP = 3  # calls before one is recorded: libraries choose their kernels in the first ones

Gradient = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]


class Recorded(CohortOracle):
    """An oracle whose gradients are recorded once for each shape of their arguments, then replayed.

    Parameters
    ----------
    oracle
        Computes the gradients. The model must not draw random numbers.
    """

    def __init__(self, oracle: CohortOracle) -> None:
        super().__init__(oracle.model)
        self.oracle = oracle
        self._recordings: dict[Hashable, _Recording] = {}

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `CohortOracle.gradient`."""
        key = (y.shape, batch.inputs.shape, tuple(batch.lengths.tolist()))
        if key not in self._recordings:
            self._recordings[key] = _Recording(self.oracle.gradient, y, batch)
        return self._recordings[key](y, batch)

    def fisher(self, y: Tensor, examples: tuple[Tensor, Tensor]) -> Tensor:
        """See `CohortOracle.fisher`."""
        return self.oracle.fisher(y, examples)


class _Recording:
    """A call of `gradient`, recorded in memory of its own, into which all later arguments are copied."""

    def __init__(self, gradient: Gradient, y: Tensor, batch: Batch) -> None:
        self._y = y.clone()
        self._batch = batch._replace(
            inputs=batch.inputs.clone(), targets=batch.targets.clone(), weights=batch.weights.clone()
        )
        self._replay, self._found = record(lambda: gradient(self._y, self._batch), y.device)

    def __call__(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        self._y.copy_(y)
        self._batch.inputs.copy_(batch.inputs)
        self._batch.targets.copy_(batch.targets)
        self._batch.weights.copy_(batch.weights)
        self._replay()
        y.copy_(self._y)  # a model's buffers, which stand behind its weights, may have changed
        return self._found


def record(
    call: Callable[[], tuple[Tensor, Tensor]], device: torch.device
) -> tuple[Callable[[], object], tuple[Tensor, Tensor]]:
    """Return what repeats a call, and the tensors that receive what it computes.

    A CPU, which cannot record, calls again instead.
    """
    if device.type == "cpu":
        found = call()

        def again() -> None:
            for old, new in zip(found, call(), strict=True):
                old.copy_(new)

        return again, found
    here, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):  # recording must not be the first use of a library
        for _ in range(WARM_UP):
            call()
    here.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph.replay, found


def fit_in_streams(workers: Sequence[VirtualClients], broadcast: Broadcast, jobs: Sequence[Job]) -> None:
    """Divide clients among workers, each in a thread and a stream of its own, and wait for all.

    Raises
    ------
    RuntimeError
        A client has failed.
    """
    device = workers[0].model.device
    module = torch.get_device_module(device)

    def fit(worker: VirtualClients, own: Sequence[Job]) -> Answers:
        with module.stream(module.Stream()):
            return worker.fit(broadcast, own)

    parts = [jobs[k :: len(workers)] for k in range(len(workers))]
    with ThreadPoolExecutor(len(workers)) as pool:
        for answers in pool.map(fit, workers, parts):
            if answers.failures or answers.notes:
                raise RuntimeError(str((answers.failures or answers.notes)[0]))
