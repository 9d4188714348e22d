"""Replaces `flwr-clientapp`: hands its arguments over to the resident client.

    python -IS hand_over.py SOCKET FLWR_CLIENTAPP [arguments]

This runs for every message, so it imports next to nothing. Without a resident client, `FLWR_CLIENTAPP` runs.
"""

import os
import socket
import sys


def main() -> int:
    """Hand the arguments over; return the exit code."""
    address, command, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except OSError:
            os.execv(command, [command, *arguments])
        connection.sendall("\0".join(arguments).encode())
        connection.shutdown(socket.SHUT_WR)
        return 0 if connection.recv(1) else 1


if __name__ == "__main__":
    sys.exit(main())
