"""What a run begins with: nothing, or another model's weights."""
