"""Discrete-event simulation of serving, which runs the planner that serves."""
