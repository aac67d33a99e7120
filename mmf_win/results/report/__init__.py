"""Report pages of runs: each is a single HTML file that works offline.

``pages`` gathers the content of a run's page and ``comparison`` that of a page about several runs. Both read
the files of the runs (``curves``, ``scored_split``) and draw them (``plots``, ``pictures``).
"""
