"""Loggers: a run's numbers in TensorBoard, MLflow and Weights & Biases."""
