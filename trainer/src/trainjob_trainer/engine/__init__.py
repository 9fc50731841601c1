"""Steps of a Keras model, many in a call of TensorFlow, and what belongs to them."""
