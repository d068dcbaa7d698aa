"""Builds few_rows.cpp, which only Linux needs. Without a C++ compiler the installation does
without it: everything works, and says at first use what is lost."""

import sys

from setuptools import Extension, setup

FEW_ROWS = Extension(
    "mlx_transformer.cpu.few_rows",
    ["mlx_transformer/cpu/few_rows.cpp"],
    extra_compile_args=["-std=c++20", "-O3", "-pthread"],
    optional=True,
    py_limited_api=True,  # it knows nothing of Python: one file name for all versions
)

setup(ext_modules=[FEW_ROWS] if sys.platform == "linux" else [])
