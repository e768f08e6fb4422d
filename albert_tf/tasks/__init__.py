"""Fine-tuning tasks: kinds with a common interface, and data sets."""
