"""Pages about runs: each one file of HTML that opens from disk, without a network.

``pages`` gathers what the page of a run shows, and ``comparison`` what that of several does. Both read what
a run left on disk (``curves``, ``scored``) and draw it (``plots``, ``pictures``).
"""
