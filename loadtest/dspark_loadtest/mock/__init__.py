"""A server whose every answer is scripted, to test the measuring: what it is known to do must be what is read."""
