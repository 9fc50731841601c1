"""Train from TFRecord files as from data that no memory holds: each worker reads and parses its own files.

Such files are on a volume or in a bucket already. Here they are made of scikit-learn's digits first.
"""

import os
import tempfile
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from trainjob_trainer import interleaved, train_and_evaluate

DATA = Path(os.environ.get("TRAINJOB_OUTPUT_DIR", "output")) / "data"
FILES = 8


def write_files(folder: Path) -> None:
    """Write training and held-out examples, a few files each. The file of digits is ordered by writer."""
    digits = load_digits()
    numbers = train_test_split(
        range(len(digits.target)), test_size=0.2, stratify=digits.target, random_state=0
    )
    for split, chosen in zip(("train", "heldout"), numbers, strict=True):
        for file in range(FILES):
            with tf.io.TFRecordWriter(str(folder / f"{split}-{file}.tfrecord")) as writer:
                for number in chosen[file::FILES]:
                    writer.write(record(digits.images[number], digits.target[number]))


def record(image, label) -> bytes:
    pixels = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.astype("uint8").tobytes()]))
    digit = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    features = tf.train.Features(feature={"pixels": pixels, "digit": digit})
    return tf.train.Example(features=features).SerializeToString()


def files(split: str) -> str:
    """The split's files, made if they aren't there: whoever has a whole folder first gives it its name."""
    if not DATA.exists():
        DATA.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=DATA.parent) as folder:
            whole = Path(folder) / "data"
            whole.mkdir()
            write_files(whole)
            try:
                whole.rename(DATA)
            except OSError:
                if not DATA.exists():
                    raise
    return str(DATA / f"{split}-*.tfrecord")


def parse(serialized):
    features = {"pixels": tf.io.FixedLenFeature([], tf.string), "digit": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(serialized, features)
    pixels = tf.reshape(tf.io.decode_raw(example["pixels"], tf.uint8), (8, 8, 1))
    return tf.cast(pixels, tf.float32) / 16.0, example["digit"]


def train() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return interleaved(files("train"), parse).with_options(options)


def heldout() -> tf.data.Dataset:
    return interleaved(files("heldout"), parse)


def model() -> keras.Model:
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    net.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


if __name__ == "__main__":
    train_and_evaluate(model, train, heldout, epochs=15, steps_per_epoch=22, global_batch=64)
