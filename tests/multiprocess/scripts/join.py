"""What every training begins with, before TensorFlow is imported."""

from trainjob_trainer.session import join

join({})
