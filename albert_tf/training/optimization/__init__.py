"""How weights move: optimizers, rates, averages; for Keras too."""
