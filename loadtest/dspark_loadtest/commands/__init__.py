"""The actions of ``dspark loadtest``, a module for each group: ``add(subparsers)`` declares, the rest does the work."""
