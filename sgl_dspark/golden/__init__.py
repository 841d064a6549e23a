"""Replay of reference vectors: the draft and its training losses against numbers computed by the released code."""
