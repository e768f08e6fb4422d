"""Fine-tuning runs: from a job to a scored model directory."""
