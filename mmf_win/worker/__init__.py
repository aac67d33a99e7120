"""Code of worker processes; only this package and ``compat`` import torch, transformers or MMF.

The program is ``entry``.
"""
