"""One step: what is learnt, the update, the evaluation."""
