"""DSpark speculative decoding: drafter, sampling, training and planning, independent of any serving engine."""

__version__ = "0.1.0"
