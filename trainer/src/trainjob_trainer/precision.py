"""Number formats that several workers can't train with."""

from __future__ import annotations

from typing import Any

import keras

from trainjob_trainer.errors import InvalidConfiguration


def refuse_loss_scaling(model: Any, strategy: Any) -> None:
    """Refuse what `mixed_float16` brings along: an optimizer that skips a step on infinite gradients.

    Each worker looks at its own gradients only: one skips, and the others wait for it in the collective.

    Raises:
        InvalidConfiguration: several devices train, and the compiled model's optimizer scales the loss.
    """
    scaling = isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer)
    if scaling and strategy.num_replicas_in_sync > 1:
        raise InvalidConfiguration(
            "the optimizer scales the loss (as with mixed_float16), and several workers hang as soon as a "
            'gradient of one of them overflows: use "mixed_bfloat16", or compile(..., auto_scale_loss=False)'
        )
