"""Pages about runs: each one file of HTML that opens from disk, without a network.

``pages`` chooses what a page is about, ``page`` makes that of one run, ``comparison`` that of several. Both
read what a run left on disk (``curves``, ``scored``, ``confounders``), draw it (``plots``, ``svg``,
``pictures``) and fill a template (``render``).
"""
