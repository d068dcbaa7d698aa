"""What makes MLX fast on a Linux CPU: start-up, BLAS, kernels, lanes."""
