"""The draft model: context projection, parallel backbone, sequential and confidence heads, checkpoint format."""
