"""What runs in processes of its own: the only room that imports torch, transformers, lmdb or MMF.

``entry``, ``build_features``, ``feature_lmdb`` and ``compat`` are programs.
"""
