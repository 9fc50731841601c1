"""Reports of a replica: log lines, progress files, TensorBoard, profiles, W&B."""
