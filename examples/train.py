"""A plain Keras script: it names no strategy, and trains with as many workers as the job has."""

import keras
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(images / 16, labels, batch_size=64, epochs=20, validation_split=0.2)
