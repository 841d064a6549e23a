"""The settings of the HTTP layer: flags of ``dspark serve``, handed on through one environment variable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sgl_dspark.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

VARIABLE = "SGL_DSPARK_HTTP"
# Instead of a list of origins: no browser of another origin may read an answer.
NO_ORIGINS = "none"


class HttpSettings(BaseModel):
    """How the layer behaves.

    Attributes
    ----------
    layer : bool
        False leaves SGLang's HTTP interface as it is, with our routes.
    any_model : bool
        Serve every model name instead of answering 404 to unknown ones.
    max_body_mib : float
        Largest request body, in MiB; 0 for no limit.
    drain_timeout : float
        Seconds from SIGTERM to the end of the process, at most.
    cors_origins : tuple of str
        Origins whose pages may read answers; ``*`` for all, empty for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: bool = True
    any_model: bool = False
    max_body_mib: float = Field(default=64.0, ge=0.0)
    drain_timeout: float = Field(default=30.0, gt=0.0, le=86400.0)
    cors_origins: tuple[str, ...] = ("*",)

    @classmethod
    def from_environment(cls) -> HttpSettings:
        """Read ``SGL_DSPARK_HTTP``, a JSON object of the fields here; all defaults when unset or empty.

        Raises
        ------
        ConfigError
            Naming the field.
        """
        text = os.environ.get(VARIABLE, "").strip()
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError as error:
            raise ConfigError(f"{VARIABLE}: {_first(error)}; leave it to dspark serve") from error

    @property
    def limit_bytes(self) -> int | None:
        """Largest body in bytes, None for no limit."""
        return int(self.max_body_mib * 2**20) if self.max_body_mib > 0 else None


def set_http(args: Namespace) -> None:
    """Check the flags and write them to ``SGL_DSPARK_HTTP``, over what that holds already.

    Raises
    ------
    ConfigError
        Naming the flag whose value is refused.
    """
    given: dict[str, Any] = {}
    if args.any_model:
        given["any_model"] = True
    for name in ("max_body_mib", "drain_timeout"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    if args.cors_origins is not None:
        origins = [origin.strip() for origin in args.cors_origins.split(",") if origin.strip()]
        given["cors_origins"] = [] if origins == [NO_ORIGINS] else origins
    before = HttpSettings.from_environment()
    try:
        settings = HttpSettings.model_validate({**before.model_dump(exclude_unset=True), **given})
    except ValidationError as error:
        raise ConfigError(f"--{_first(error).replace('_', '-', 2)}") from error
    if given:
        os.environ[VARIABLE] = settings.model_dump_json(exclude_unset=True)


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}"
