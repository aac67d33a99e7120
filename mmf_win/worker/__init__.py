"""What runs in processes of its own: the only room that imports torch, transformers, lmdb or MMF.

* ``entry`` trains or predicts: it reads a request, runs MMF, and writes the outcome. ``stopping`` listens for
  the request to stop, ``outcome`` classifies errors, and ``predictions`` checks what MMF predicted.
* ``compat/`` holds the patches that MMF needs on today's libraries, one module a library.
* ``hooks/`` holds what mmfw adds inside a run: events, checkpoints, micro-batches, resuming.
* ``build_features`` and ``feature_lmdb`` are programs, too: they build and read an LMDB of region features.
"""
