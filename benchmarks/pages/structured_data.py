"""Who falls ill? A table with words, whole numbers and measurements, through a FeatureSpace.

python structured_data.py FOLDER [--dropout RATE]
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.utils import FeatureSpace

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--dropout", type=float, default=0.5)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(5)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

random = np.random.default_rng(5)
ROWS = 1200
table = {
    "age": random.integers(25, 80, ROWS),
    "sex": random.integers(0, 2, ROWS),
    "pain": random.integers(1, 5, ROWS),
    "pressure": random.normal(130, 18, ROWS).astype("float32"),
    "cholesterol": random.normal(240, 50, ROWS).astype("float32"),
    "pulse": random.normal(150, 22, ROWS).astype("float32"),
    "thal": random.choice(["normal", "fixed", "reversible"], ROWS),
}
risk = (table["age"] - 55) / 15 + (table["cholesterol"] - 240) / 80 - (table["pulse"] - 150) / 25
risk = risk + (table["pain"] == 4) + 1.5 * (table["thal"] == "reversible") * (table["sex"] == 1)
ill = (risk + 0.5 * random.normal(size=ROWS) > 0.8).astype("int64")


def rows(part):
    """Return a data set of these rows."""
    return tf.data.Dataset.from_tensor_slices(
        ({name: column[part] for name, column in table.items()}, ill[part])
    )


raw_train, raw_test = rows(slice(1000)).shuffle(1000, seed=5).batch(32), rows(slice(1000, None)).batch(32)

feature_space = FeatureSpace(
    features={
        "sex": "integer_categorical",
        "pain": "integer_categorical",
        "thal": "string_categorical",
        "age": "float_discretized",
        "pressure": "float_normalized",
        "cholesterol": "float_normalized",
        "pulse": "float_normalized",
    },
    crosses=[("sex", "age"), ("thal", "sex")],
    crossing_dim=16,
    output_mode="concat",
)
feature_space.adapt(raw_train.map(lambda features, _: features))
train = raw_train.map(lambda features, label: (feature_space(features), label)).prefetch(tf.data.AUTOTUNE)
test = raw_test.map(lambda features, label: (feature_space(features), label)).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    encoded = feature_space.get_encoded_features()
    hidden = layers.Dense(32, activation="relu")(encoded)
    predictions = layers.Dense(1, activation="sigmoid")(layers.Dropout(options.dropout)(hidden))
    model = keras.Model(encoded, predictions)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])

model.fit(
    train,
    epochs=12,
    validation_data=test,
    callbacks=[keras.callbacks.CSVLogger(options.folder / "history.csv")],
    verbose=2,
)
print(model.evaluate(test, verbose=0, return_dict=True))
model.save_weights(options.folder / "last.weights.h5")
