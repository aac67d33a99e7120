"""The files that a run reads: which they are, where they lie, whether they are whole, and how to get them.

::

    config.py    MMF's configuration of a preset, put together without importing MMF
    zoo.py       what MMF downloads, from where, with which hash
    caches.py    what transformers and torchvision download into caches of their own
    listing.py   a configuration → the files it needs
    ledger.py    what was found in files that lie in folders of others
    keys.py      of which images there are region features
    added.py     region features of the user's own images
    state.py     a need → there or not, whole or not, and who vouches for that
    hub.py       models of the Hugging Face Hub
    mirror.py    another place to get archives from
    fetch.py     bring in what is missing, mend what is broken
    check.py     all of it before a run
"""
