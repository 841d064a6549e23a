"""What the worker exports to Prometheus; `dspark_sglang.metrics.definitions` says what each figure means."""
