"""Steps of a Keras model, many in one TensorFlow call, with their gradients, losses, metrics and state."""
