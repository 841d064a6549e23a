"""Commands that print and plot what the lower packages compute."""
