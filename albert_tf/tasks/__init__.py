"""Fine-tuning tasks: kinds of tasks with a common interface, and data sets."""
