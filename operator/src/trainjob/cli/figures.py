"""Numbers as people read them."""

import math

_SHARES = ("accuracy", "acc", "precision", "recall", "auc")


def format_metric(name: str, value: float | str) -> str:
    """Return `accuracy 97.5 %` or `loss 0.0812`; values of a status are text, `nan` among them."""
    try:
        number = float(value)
    except ValueError:
        return f"{name} {value}"
    if not math.isfinite(number):
        return f"{name} {number}"
    if name.lower().endswith(_SHARES) and 0 <= number <= 1:
        return f"{name} {100 * number:.1f} %"
    return f"{name} {number:.4g}"


def format_rate(rate: float) -> str:
    """Return examples per second, such as `1,250`."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
