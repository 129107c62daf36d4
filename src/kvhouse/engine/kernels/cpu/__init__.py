"""Attention over pages on the CPU, compiled by Numba: vector code written as LLVM IR inside."""
