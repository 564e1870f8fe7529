# SPDX-License-Identifier: Apache-2.0
"""Warnings of octavo.attention."""


class LayoutWarning(UserWarning):
    """The heads and seqlen dimensions look swapped and no layout was given; issued once per process."""
