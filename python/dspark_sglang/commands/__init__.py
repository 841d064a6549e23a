"""Subcommands of ``dspark`` that need SGLang."""
