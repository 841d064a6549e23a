"""From prompts to what a draft is trained on: answers of the target, and its hidden states on them."""
