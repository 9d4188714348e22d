"""PyTorch modules that models are made of."""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Convolutions whose outputs are added to the inputs, which `shortcut` converts to their shape."""

    def __init__(self, main: list[nn.Module], shortcut: list[nn.Module]) -> None:
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, after ReLU."""
        return functional.relu(self.main(x) + self.shortcut(x))


class Recurrent(nn.Module):
    """Vectors of characters or words, an LSTM over them, and a linear layer on its last output.

    `vectors` maps inputs to vectors, shape (n, L, D).
    """

    def __init__(self, vectors: nn.Module, memory: nn.LSTM, num_outputs: int) -> None:
        super().__init__()
        self.vectors, self.memory = vectors, memory
        self.outputs = nn.Linear(memory.hidden_size, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, shape (n, num_outputs)."""
        states, _ = self.memory(self.vectors(x))
        outputs: Tensor = self.outputs(states[:, -1])
        return outputs
