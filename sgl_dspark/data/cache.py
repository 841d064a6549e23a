"""The target cache: what the frozen target computed on each conversation, in shards on disk (Sec. 4.1, 5.1).

A folder holds ``manifest.json`` and safetensors shards. Vocabulary logits are never stored: they are ``lm_head`` times
the final-norm hidden state, O(d) numbers a token instead of O(V), formed where a loss needs them. A shard counts once
the manifest names it with its checksum, which happens after it is whole; readers compare the checksum, so that a
damaged shard is named and never trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgl_dspark.errors import DataError

MANIFEST = "manifest.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Conversation:
    """One supervised sequence.

    Attributes
    ----------
    ids : int64 [S]
        All tokens.
    loss_mask : bool [S]
        True on assistant tokens, end-of-turn token included.
    features : [S-1, m*d]
        Concatenated target layer outputs of tokens 0..S-2.
    hidden : [S-1, d]
        The target's final-norm output of the same tokens.
    """

    ids: Tensor
    loss_mask: Tensor
    features: Tensor
    hidden: Tensor

    @property
    def trainable(self) -> bool:
        """Whether an anchor with a label fits: two supervised tokens in a row."""
        return bool((self.loss_mask[:-1] & self.loss_mask[1:]).any())


@dataclass(frozen=True)
class ShardEntry:
    """A shard as the manifest names it.

    Attributes
    ----------
    file : str
        Name inside the cache folder.
    sha256 : str
        Of the whole file.
    conversations, tokens, supervised : int
        What it holds.
    key : str
        What it was made from; a writer uses it to tell whether a shard is still the wanted one.
    """

    file: str
    sha256: str
    conversations: int
    tokens: int
    supervised: int
    key: str = ""


@dataclass(frozen=True)
class TargetCache:
    """An opened cache.

    Attributes
    ----------
    folder : Path
    source : dict
        What produced the data: target and its hash, ``feature_layers``, dtype, sampling.
    shards : tuple of ShardEntry
        In order of writing.
    """

    folder: Path
    source: dict[str, Any]
    shards: tuple[ShardEntry, ...]

    @classmethod
    def open(cls, folder: Path) -> TargetCache:
        """Read the manifest.

        Raises
        ------
        DataError
            If the folder holds no cache, or one of another version.
        """
        path = folder / MANIFEST
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{folder} holds no target cache; make one with `dspark data cache`.") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is damaged ({error}); remove {folder} and make the cache again.") from error
        if raw.get("version") != FORMAT_VERSION:
            raise DataError(
                f"{path} is of version {raw.get('version')}, this release reads {FORMAT_VERSION}; make the cache again."
            )
        try:
            return cls(folder, dict(raw["source"]), tuple(ShardEntry(**entry) for entry in raw["shards"]))
        except (KeyError, TypeError) as error:
            raise DataError(f"{path} is incomplete ({error}); remove {folder} and make the cache again.") from error

    @property
    def feature_layers(self) -> list[int]:
        """Layers whose outputs are stored."""
        return [int(layer) for layer in self.source["feature_layers"]]

    @property
    def supervised_tokens(self) -> int:
        """Assistant tokens in all shards."""
        return sum(entry.supervised for entry in self.shards)

    def read(self, entry: ShardEntry) -> list[Conversation]:
        """Read one shard, in order of writing.

        Raises
        ------
        DataError
            If the file is missing or is not what the manifest says; names it.
        """
        from safetensors.torch import load

        path = self.folder / entry.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error}); {_REMEDY}") from error
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise DataError(f"{path} is damaged: its checksum is not the manifest's; {_REMEDY}")
        return unpack(load(content))


_REMEDY = "run the command that made the cache again, which makes this shard anew."


def pack(conversations: Sequence[Conversation]) -> dict[str, Tensor]:
    """Lay conversations out as the tensors of one shard."""
    return {
        "ids": torch.cat([c.ids for c in conversations]).to(torch.int32),
        "loss_mask": torch.cat([c.loss_mask for c in conversations]).to(torch.uint8),
        "lengths": torch.tensor([len(c.ids) for c in conversations]),
        "features": torch.cat([c.features for c in conversations]),
        "hidden": torch.cat([c.hidden for c in conversations]),
    }


def unpack(raw: dict[str, Tensor]) -> list[Conversation]:
    """Take one shard's tensors apart again."""
    # The last token of a conversation has no hidden state, hence two running offsets.
    tokens, states, conversations = 0, 0, []
    for length in raw["lengths"].tolist():
        conversations.append(
            Conversation(
                ids=raw["ids"][tokens : tokens + length].long(),
                loss_mask=raw["loss_mask"][tokens : tokens + length].bool(),
                features=raw["features"][states : states + length - 1],
                hidden=raw["hidden"][states : states + length - 1],
            )
        )
        tokens, states = tokens + length, states + length - 1
    return conversations


class CacheWriter:
    """Writes shards, one whole file after another.

    Parameters
    ----------
    folder : Path
        Made when missing.
    source : dict
        What produces the data. A cache that is there must have been made the same way.

    Raises
    ------
    DataError
        If the folder holds a cache of another source.
    """

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.source = folder, dict(source)
        self.entries: dict[str, ShardEntry] = {}
        if (folder / MANIFEST).is_file():
            found = TargetCache.open(folder)
            # A manifest without shards, which an attempt that failed may leave, binds nobody.
            if found.source != self.source and found.shards:
                names = sorted(
                    name
                    for name in found.source.keys() | self.source.keys()
                    if found.source.get(name) != self.source.get(name)
                )
                raise DataError(
                    f"{folder} holds a cache of another source (it differs in {', '.join(names)}); "
                    "choose an empty folder."
                )
            self.entries = {entry.file: entry for entry in found.shards}

    def holds(self, file: str, key: str) -> bool:
        """Whether a shard of this name was made from ``key`` and is undamaged."""
        entry = self.entries.get(file)
        if entry is None or entry.key != key:
            return False
        try:
            with (self.folder / file).open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest() == entry.sha256
        except OSError:
            # A shard that is gone is made again, like one that is damaged.
            return False

    def write(self, file: str, conversations: Sequence[Conversation], key: str = "") -> None:
        """Write one shard, then name it in the manifest."""
        from safetensors.torch import save

        content = save(pack(conversations))
        path = self.folder / file
        partial = path.with_suffix(".partial")
        partial.write_bytes(content)
        partial.replace(path)
        self.entries[file] = ShardEntry(
            file=file,
            sha256=hashlib.sha256(content).hexdigest(),
            conversations=len(conversations),
            tokens=sum(len(c.ids) for c in conversations),
            supervised=sum(int(c.loss_mask.sum()) for c in conversations),
            key=key,
        )
        self._write_manifest()

    def keep_only(self, files: Sequence[str]) -> None:
        """Forget and delete shards that are no part of the cache any more."""
        for file in [name for name in self.entries if name not in files]:
            (self.folder / file).unlink(missing_ok=True)
            del self.entries[file]
        # What no manifest names was left by one that is gone.
        for path in self.folder.glob("shard-*.safetensors"):
            if path.name not in self.entries:
                path.unlink()
        if self.entries:
            self._write_manifest()

    def _write_manifest(self) -> None:
        shards = [asdict(self.entries[file]) for file in sorted(self.entries)]
        text = json.dumps({"version": FORMAT_VERSION, "source": self.source, "shards": shards}, indent=2)
        partial = self.folder / (MANIFEST + ".partial")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(self.folder / MANIFEST)


def shard_name(index: int) -> str:
    """File name of a shard."""
    return f"shard-{index:05d}.safetensors"


def weights_sha256(folder: Path) -> str:
    """Hash a model's weights: every safetensors file, by name.

    Raises
    ------
    DataError
        If the folder holds none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(f"{folder} holds no .safetensors weights; name the folder of a model.")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
