"""Offline evaluation of a draft: batch-1 rounds, accept length, acceptance per slot."""
