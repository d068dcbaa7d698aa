"""Builds few_rows.cpp, which only Linux needs. Without a C++ compiler the installation does
without it: everything works, and says at first use what is lost."""

import sys

from setuptools import Extension, setup

FEW_ROWS = Extension(
    "mlx_transformer.cpu.few_rows",
    ["mlx_transformer/cpu/few_rows.cpp"],
    # Python's own flags let an int wrap around. Every index of the inner loop would then be
    # computed apart, and products of 15 rows take 1.4 times as long.
    extra_compile_args=["-std=c++20", "-O3", "-pthread", "-fstrict-overflow"],
    optional=True,
    py_limited_api=True,  # it knows nothing of Python: one file name for all versions
)

setup(ext_modules=[FEW_ROWS] if sys.platform == "linux" else [])
