"""Draws what is held out anew in each process, and what TensorFlow and NumPy draw without a seed."""

import random

import keras
import numpy as np
import tensorflow as tf

ROWS = np.arange(64.0, dtype="float32")[:, None]
order = random.SystemRandom().sample(range(64), 64)
data = tf.data.Dataset.from_tensor_slices((ROWS[order], ROWS[order])).batch(16)
print("drew", tf.random.uniform([]).numpy(), np.random.default_rng().random(), *{"a", "b", "c", "d"})
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data.take(3), validation_data=data.skip(3), verbose=0)
