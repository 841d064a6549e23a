"""Triton kernels and their launches. Importing a module of this package imports Triton; only ``kernels`` does so.

Kernel parameters: lower case is a pointer or a number, ``x_r`` the stride of ``x`` along the axis that the letter
names, upper case a constant of the compilation (a tile's size, or what the batch needs).
"""
