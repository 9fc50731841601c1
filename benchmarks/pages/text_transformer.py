"""A transformer block that tells friendly sentences from unfriendly ones, from strings on.

python text_transformer.py FOLDER [--dropout RATE]
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--dropout", type=float, default=0.1)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(3)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

WORDS, LENGTH, WIDTH = 500, 40, 32


@keras.saving.register_keras_serializable()
class TransformerBlock(layers.Layer):
    """Attention and two dense layers, each with a short cut around it."""

    def __init__(self, width, heads, hidden, rate, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, width)
        self.network = keras.Sequential([layers.Dense(hidden, activation="relu"), layers.Dense(width)])
        self.first_norm, self.second_norm = layers.LayerNormalization(), layers.LayerNormalization()
        self.first_dropout, self.second_dropout = layers.Dropout(rate), layers.Dropout(rate)

    def call(self, inputs):
        """Return as many vectors as there are words."""
        attended = self.first_norm(inputs + self.first_dropout(self.attention(inputs, inputs)))
        return self.second_norm(attended + self.second_dropout(self.network(attended)))


@keras.saving.register_keras_serializable()
class WordsAndPlaces(layers.Layer):
    """The vector of a word plus the vector of its place."""

    def __init__(self, length, words, width, **kwargs):
        super().__init__(**kwargs)
        self.words, self.places = layers.Embedding(words, width), layers.Embedding(length, width)

    def call(self, inputs):
        """Return a vector for each word."""
        return self.words(inputs) + self.places(ops.arange(ops.shape(inputs)[-1]))


# Sentences of made-up words: one in five is friendly or unfriendly, and "not" turns the next one round.
random = np.random.default_rng(3)
plain = [f"word{number}" for number in range(300)]
friendly, unfriendly = [f"good{number}" for number in range(30)], [f"bad{number}" for number in range(30)]


def write_sentence():
    """Return a sentence and whether it is friendly."""
    words, mood = [], random.normal()
    for _ in range(random.integers(10, 45)):
        if random.random() > 0.2:
            words.append(random.choice(plain))
            continue
        kind = random.random() < 1 / (1 + np.exp(-3 * mood))
        turned = random.random() < 0.2
        words += ["not"] * turned + [random.choice(friendly if kind != turned else unfriendly)]
    return " ".join(words), int(mood > 0)


sentences, labels = zip(*[write_sentence() for _ in range(1400)], strict=True)
raw_train = tf.data.Dataset.from_tensor_slices((list(sentences[:1100]), list(labels[:1100])))
raw_test = tf.data.Dataset.from_tensor_slices((list(sentences[1100:]), list(labels[1100:])))

vectorize = layers.TextVectorization(max_tokens=WORDS, output_mode="int", output_sequence_length=LENGTH)
vectorize.adapt(raw_train.batch(100).map(lambda text, _: text))
train = raw_train.shuffle(1100, seed=3).batch(32).map(lambda text, label: (vectorize(text), label))
test = raw_test.batch(32).map(lambda text, label: (vectorize(text), label))

with strategy.scope():
    inputs = keras.Input((LENGTH,), dtype="int64")
    hidden = WordsAndPlaces(LENGTH, WORDS, WIDTH)(inputs)
    hidden = TransformerBlock(WIDTH, 2, 32, options.dropout)(hidden)
    hidden = layers.Dropout(options.dropout)(layers.GlobalAveragePooling1D()(hidden))
    hidden = layers.Dropout(options.dropout)(layers.Dense(20, activation="relu")(hidden))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(
    train.prefetch(tf.data.AUTOTUNE),
    epochs=4,
    validation_data=test,
    callbacks=[keras.callbacks.CSVLogger(options.folder / "history.csv")],
    verbose=2,
)
loss, accuracy = model.evaluate(test, verbose=0)
print(f"test loss {loss:.4f}, test accuracy {accuracy:.4f}")
model.save_weights(options.folder / "last.weights.h5")
