"""Builds the solver's compiled loops where there is a C compiler; without one all is done in PyTorch."""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FLAGS = ["-std=gnu11", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]


class BuildLoops(build_ext):
    """Flags that gcc and clang understand, and none for other compilers."""

    def build_extension(self, extension: Extension) -> None:
        if self.compiler.compiler_type == "unix":
            extension.extra_compile_args = FLAGS
        super().build_extension(extension)


setup(
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    cmdclass={"build_ext": BuildLoops},
    ext_modules=[
        Extension(
            "dpsinkhorn.ot.native._kernels",
            sources=["src/dpsinkhorn/ot/native/kernels.c"],
            depends=[f"src/dpsinkhorn/ot/native/{part}.h" for part in ("loops", "points", "scaling")],
            libraries=["m"] if os.name == "posix" else [],
            optional=True,
            py_limited_api=True,  # it uses nothing of Python's, so one build serves all versions
        )
    ],
)
