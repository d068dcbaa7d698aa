"""The prompt from a checkout: the same as `mlx-transformer translate` on a terminal."""

import sys

from mlx_transformer.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["translate", *sys.argv[1:]]))
