"""Step-time model: what a step costs at each number of verify tokens, measured and kept up to date (Sec. 3.2.2)."""
