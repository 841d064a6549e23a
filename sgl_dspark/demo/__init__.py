"""Models that a fresh machine can make for itself: the SmolLM2 target and the test fixture pair."""
