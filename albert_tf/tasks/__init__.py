"""Fine-tuning: kinds of tasks, their common interface, and data sets."""
