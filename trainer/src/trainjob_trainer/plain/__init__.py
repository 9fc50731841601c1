"""An unmodified Keras script under a TrainJob: prepared from outside, by `bootstrap/sitecustomize.py`."""
