"""Flags with which XLA compiles quickly instead of well: of the tests, and of what they start.

Compiling takes most of the tests' time, and LLVM's optimizations most of that. The arrays are so
small that they gain nothing from them.
"""

QUICK_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
