"""The SGLang side of sgl-dspark: platform, worker, attention backend and commands."""
