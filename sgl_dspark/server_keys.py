"""Keys of the servers that our commands ask: from the environment, as options would show in process lists."""

from __future__ import annotations

import os

# What SGLang was given as --api-key and --admin-api-key.
API_KEY, ADMIN_KEY = "DSPARK_API_KEY", "DSPARK_ADMIN_KEY"
HINT = f"set {ADMIN_KEY} to its admin key, {API_KEY} to its API key"
# Where SGLang wants the admin key if it has one, else the API key.
_ADMIN_PATHS = ("/dspark/policy", "/dspark/records", "/flush_cache")


def authorization(path: str) -> dict[str, str]:
    """Return the header that a request to ``path`` needs, or nothing where no key is known.

    Of a server that has both keys, each opens what the other does not; one that has a single key takes it everywhere.
    """
    api, admin = os.environ.get(API_KEY), os.environ.get(ADMIN_KEY)
    key = (admin or api) if path.startswith(_ADMIN_PATHS) else (api or admin)
    return {"Authorization": f"Bearer {key}"} if key else {}
