"""Traces of production in one canonical form: the JSON lines of Mooncake, as AIPerf reads them.

``request.py`` is the form, ``canonical.py`` reads and writes it, ``tables.py``, ``bailian.py`` and ``servegen.py``
convert to it, ``synthetic.py`` makes one up, ``fit.py`` rescales one to the model that is served.
"""
