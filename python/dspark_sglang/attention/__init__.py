"""Attention executed from one ragged plan per step."""

CPU_BACKEND_NAME = "dspark_cpu"
CUDA_BACKEND_NAME = "dspark_cuda"
