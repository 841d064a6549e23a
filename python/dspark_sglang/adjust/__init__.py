"""Request settings that change the target's logits, applied at every verified row with the drafts before it."""
