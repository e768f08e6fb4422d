"""Fine-tuning tasks: kinds of task with a common interface, and data sets."""
