"""Drafts in the layouts of other trainers: read what can be represented exactly, refuse the rest by field."""
