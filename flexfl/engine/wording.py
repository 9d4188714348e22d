"""Words for numbers in what users read."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 client, 2 clients."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
