"""An LSTM that forecasts the temperature of the next half day from the last two days.

python weather_forecast.py FOLDER
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(4)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

# A measurement each three hours: temperature, pressure, humidity and wind, which have to do with one another.
random = np.random.default_rng(4)
hour = 3.0 * np.arange(2000)
slow = np.convolve(random.normal(size=2000 + 79), np.ones(80) / 9, "valid")
temperature = 9 + 8 * np.sin(hour * 2 * np.pi / 8766) + 4 * np.sin(hour * 2 * np.pi / 24) + 3 * slow
pressure = 1000 - 6 * np.roll(slow, -8) + random.normal(size=2000)
humidity = 70 - 2 * (temperature - 9) + 4 * random.normal(size=2000)
wind = 3 + np.abs(np.gradient(pressure)) + random.random(2000)
features = np.stack([temperature + 0.3 * random.normal(size=2000), pressure, humidity, wind], axis=1)

SPLIT, PAST, FUTURE = 1500, 16, 4
mean, spread = features[:SPLIT].mean(axis=0), features[:SPLIT].std(axis=0)
features = ((features - mean) / spread).astype("float32")
target = features[PAST + FUTURE :, 0]


def windows(first, last):
    """Return batches of two days each, with the temperature half a day later."""
    return keras.utils.timeseries_dataset_from_array(
        features[first : last - PAST - FUTURE],
        target[first : last - PAST - FUTURE],
        sequence_length=PAST,
        batch_size=128,
    )


train, validation = windows(0, SPLIT), windows(SPLIT, 2000)

with strategy.scope():
    inputs = keras.Input((PAST, features.shape[1]))
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(16)(inputs)))
    model.compile(keras.optimizers.Adam(0.03), "mse", metrics=["mae"])

best = options.folder / "best.weights.h5"
history = model.fit(
    train,
    epochs=25,
    validation_data=validation,
    callbacks=[
        keras.callbacks.ModelCheckpoint(
            best, monitor="val_loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.3, patience=2, verbose=1),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True, verbose=1),
        keras.callbacks.CSVLogger(options.folder / "history.csv"),
    ],
    verbose=2,
)
print(f"{len(history.epoch)} epochs, least validation loss {min(history.history['val_loss']):.4f}")
forecast = model.predict(validation, verbose=0)
print(f"mean of the forecast temperatures {forecast.mean() * spread[0] + mean[0]:.2f} degrees")
model.save_weights(options.folder / "last.weights.h5")
