"""How much to verify: survival, capacity search, ranking and their fallbacks (Sec. 3.2.2, 5.2)."""
