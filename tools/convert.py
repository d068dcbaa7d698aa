"""Convert a checkpoint from a checkout: the same as `mlx-transformer convert`."""

import sys

from mlx_transformer.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
