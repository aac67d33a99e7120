"""Code that runs in worker processes; only it and ``compat`` import torch, transformers or MMF.

``entry`` is a program.
"""
