"""The error of whoever judges what a user has written, and no other's."""

from __future__ import annotations


class SettingsError(ValueError):
    """Settings, or the files that they name, are invalid or do not fit together.

    The message says in one line what is wrong, where, and what to do. Any other exception, a plain
    `ValueError` too, is a defect: of this program, or of a part of the user's own.
    """
