"""A small convolutional network that tells ten kinds of drawings apart.

python simple_convnet.py FOLDER [--dropout RATE]
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--dropout", type=float, default=0.5)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

# Each class is a shape of a few dark squares; a drawing is moved by some pixels and has noise.
random = np.random.default_rng(1)
shapes = np.kron(random.random((10, 6, 6)) > 0.6, np.ones((4, 4)))
labels = random.integers(0, 10, 3000)
images = np.zeros((3000, 28, 28), "float32")
for image, label, (down, right) in zip(images, labels, random.integers(0, 5, (3000, 2)), strict=True):
    image[down : down + 24, right : right + 24] = shapes[label]
images = np.clip(images + 0.3 * random.normal(size=images.shape), 0, 1).astype("float32")[..., None]
targets = keras.utils.to_categorical(labels, 10)
x_train, y_train, x_test, y_test = images[:2500], targets[:2500], images[2500:], targets[2500:]

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(options.dropout),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
model.summary()

model.fit(
    x_train,
    y_train,
    batch_size=128,
    epochs=4,
    validation_split=0.1,
    callbacks=[keras.callbacks.CSVLogger(options.folder / "history.csv")],
    verbose=2,
)
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}")
model.save_weights(options.folder / "last.weights.h5")
