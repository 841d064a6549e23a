"""Training of draft models: anchors, losses, data and the optimisation loop."""
