"""Pages about runs: each one file of HTML that opens from disk, without a network.

``pages`` chooses what a page is about; ``page`` gathers what that of one run shows, ``comparison`` that of
several. Both read what a run left on disk (``curves``, ``scored``) and draw it (``plots``, ``pictures``).
"""
