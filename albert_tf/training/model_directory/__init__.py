"""What a run keeps: checkpoints, and a card beside them."""
