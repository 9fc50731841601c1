"""What a job changes of Keras, and what stands behind its `fit`."""
