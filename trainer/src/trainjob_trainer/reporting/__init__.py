"""Reports of a replica: log lines, progress files, TensorBoard."""
