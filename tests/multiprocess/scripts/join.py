"""What every training begins with, before TensorFlow is imported."""

from trainjob_trainer.plain.process import join

join({})
