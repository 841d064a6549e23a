"""Operations that a CUDA device runs as one or two launches each, and anything else as plain torch.

One module per operation: a function with the signature of its torch reference, which picks the Triton kernel of
``triton_ops`` for tensors on a CUDA device and the reference otherwise. Triton is imported by the first launch only,
so a CPU server never loads it. A kernel is compiled at its first launch: run an operation once, with the sizes and
dtypes that serve, before a graph captures it.
"""
