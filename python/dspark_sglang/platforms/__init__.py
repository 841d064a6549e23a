"""SGLang platforms that this package brings."""
