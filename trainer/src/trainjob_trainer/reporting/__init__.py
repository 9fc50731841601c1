"""What a replica tells the outside: lines, progress files, TensorBoard, profiles, W&B."""
