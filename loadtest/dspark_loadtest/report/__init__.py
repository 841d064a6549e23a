"""What is shown of a run: one document, written as Markdown and as HTML, its figures, and the JSON of everything."""
