"""Train from a checkout: the same as `mlx-transformer train`."""

import sys

from mlx_transformer.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
