"""PyTorch modules that models are made of."""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Convolutions whose outputs are added to the inputs.

    Parameters
    ----------
    main, shortcut
        The convolutions, and what converts the inputs to the shape of their outputs.
    """

    def __init__(self, main: list[nn.Module], shortcut: list[nn.Module]) -> None:
        super().__init__()
        self.main, self.shortcut = nn.Sequential(*main), nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, after ReLU."""
        return functional.relu(self.main(x) + self.shortcut(x))


class Recurrent(nn.Module):
    """Vectors of characters or words, an LSTM over them, and a linear layer on its last output.

    Parameters
    ----------
    vectors
        Maps inputs to vectors, shape (n, L, D).
    memory, num_outputs
        The LSTM, and how many numbers the linear layer returns.
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
