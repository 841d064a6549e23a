"""Load tests over HTTP: traces of production replayed against a server, tokens accounted for, the Pareto drawn.

Files in order: ``traces`` (what is asked and when), ``prompts.py`` (with which text), ``client.py`` and ``replay.py``
(asking it), ``record.py`` and ``stats.py`` (what that means), ``report`` and ``pareto.py`` (what is shown).
"""
