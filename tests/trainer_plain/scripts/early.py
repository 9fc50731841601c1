import tensorflow as tf

scale = tf.constant(2.0)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
