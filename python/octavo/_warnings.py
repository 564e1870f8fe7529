"""Warnings of octavo.attention."""


class LayoutWarning(UserWarning):
    """Heads and rows look swapped, and the layout was not named; once in a process."""
