"""Words for numbers in what users read."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 client, 2 clients."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def plain(text: object, most: int = 200) -> str:
    """Return a text that somebody else wrote so that it is safe to print: in one short line."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"
