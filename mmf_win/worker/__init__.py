"""What runs in processes of its own: with ``compat``, the only room that imports torch, transformers or MMF.

``entry`` is a program.
"""
