"""How long to wait before trying again."""

from __future__ import annotations

import random

_MOST_DOUBLINGS = 16


def full_jitter(failures: int, *, first: float, most: float) -> float:
    """Seconds to wait after so many failures in a row, counted from 1.

    Random between 0 and a ceiling that doubles from `first` up to `most`: whoever lost the same peer at the same
    moment does not return to it in step (F9).
    """
    ceiling = min(most, first * 2 ** min(failures - 1, _MOST_DOUBLINGS))
    return random.uniform(0, ceiling)  # noqa: S311 - jitter, not a secret
