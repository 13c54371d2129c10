"""`python -m gpu_stage`, the same as the `gpu-stage` command.

The processes that it spawns import this module too, and need nothing of the command.
"""

if __name__ == "__main__":
    from gpu_stage.cli import main

    main()
