"""What only a GPU can show, as one run. benchmarks/gpu_check.sh starts it; its --emulate tries it without a GPU."""
