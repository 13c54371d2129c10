"""`python -m gpu_stage`, the same as the `gpu-stage` command."""

from gpu_stage.cli import main

if __name__ == "__main__":
    main()
