"""Fine-tuning runs: jobs, training, evaluation and model directories."""
