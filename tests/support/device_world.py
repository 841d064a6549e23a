"""Requests that decode by the device path on a CPU: the target is tiny, the draft a real one, kernels are in torch."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark_sglang import device_decode, device_path
from dspark_sglang.allocation import DevicePlan
from dspark_sglang.device_path import DevicePath, build_device_path
from dspark_sglang.draft_kv import DraftKvPool
from dspark_sglang.running import Running
from dspark_sglang.sampling_bridge import RowSampling, accept, without_drafts
from dspark_sglang.verify import BlockLayout, VerifyInput
from sgl_dspark.sampling.rejection import Verdict
from tests.support.drafts import tiny_drafter
from tests.support.fake_graph import FakeGraph
from tests.support.paged_reference import ReferencePagedPrefill
from tests.support.tiny_ragged_target import HEADS, VOCAB, TinyTarget

CPU = torch.device("cpu")
MOST, LENGTH, NEW = 3, 48, 26


class World:
    """Requests that decode side by side over one pool."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        graphs: bool,
        head: str = "gated",
        prompts: list[list[int]] | None = None,
    ) -> None:
        monkeypatch.setattr("sgl_dspark.model.packed.can_pack", lambda weight: False)
        self.drafter = tiny_drafter(head, vocab_size=VOCAB)
        self.drafter.fuse_for_serving()
        self.gamma, self.width = self.drafter.config.gamma, self.drafter.config.gamma + 1
        generator = torch.Generator().manual_seed(0)
        self.most = most = MOST if prompts is None else len(prompts)
        slots = (torch.randperm(most * LENGTH, generator=generator) + 1).view(most, LENGTH)
        self.table = torch.cat([torch.zeros(1, LENGTH, dtype=torch.int64), slots]).to(torch.int32)
        self.target = TinyTarget(most * LENGTH + 1, self.table)
        self.project = torch.randn(HEADS * 4, self.drafter.config.num_features, generator=generator)
        self.pool = DraftKvPool(self.drafter.config, most * LENGTH + 1, torch.float32, CPU)
        self.fallbacks: Counter[str] = Counter()
        self._patch(monkeypatch)
        self.path = self._path(graphs)
        own = [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in (3, 9, 1)]
        self.prompts = own if prompts is None else prompts

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the tiny target where SGLang's layers are."""

        def batch(
            worker: Any, made: VerifyInput, seq_lens: Tensor, on_host: Tensor, rows: Tensor, slots: Tensor
        ) -> Any:
            described = self.target.batch(rows, made)
            described.slots = slots
            return described

        def layers(worker: Any, described: Any) -> Any:
            made = described.spec_info
            logits, features = self.target.forward(made.draft_token, made.positions, described.slots)
            return SimpleNamespace(next_token_logits=logits, hidden_states=features @ self.project)

        def planned_first(worker: Any, described: Any) -> Any:
            self.target.backend.init_forward_metadata(described)
            return layers(worker, described)

        monkeypatch.setattr(device_path, "flat_verify_batch", batch)
        monkeypatch.setattr(device_path, "forward_target_model", layers)
        monkeypatch.setattr(device_path, "forward_target_flat", planned_first)

    def _path(self, graphs: bool) -> DevicePath:
        runner = self.target.runner
        runner.attn_backend, runner.model_config.model_is_mrope = self.target.backend, False
        ones, zeros = np.ones((3, self.gamma), np.float32), np.zeros((3, self.gamma), np.float32)
        calibration = SimpleNamespace(inverse_temperatures=ones, biases=zeros)
        worker: Any = SimpleNamespace(
            model_runner=runner,
            drafter=self.drafter,
            parts=SimpleNamespace(pool=self.pool, shortlist=6, drafter=self.drafter, accept=accept),
            max_requests=self.most,
            stride=self.width,
            device=CPU,
            seed=5,
            num_slots=self.most * LENGTH + 1,
            knowledge=SimpleNamespace(calibration=calibration),
            count_fallback=lambda name: self.fallbacks.update([name]),
            target_worker=None,
            scheduler=SimpleNamespace(launched=lambda *_: None, end=lambda *_: None),
            result=lambda batch, output, outcome, window: outcome,
        )
        path = build_device_path(worker, ReferencePagedPrefill, lambda pool: FakeGraph())
        assert path is not None
        if graphs:
            path.capture()
            assert path.tiers == path.target.tiers
        worker.device_path, self.worker = path, worker
        return path

    def forward(self, request: int, tokens: list[int], start: int) -> tuple[Tensor, Tensor]:
        """Run the target over tokens of one request whose KV before ``start`` is there."""
        positions = torch.arange(start, start + len(tokens))
        slots, row = self.table[request + 1, positions].long(), torch.tensor([request + 1])
        made = VerifyInput.flat(torch.tensor(tokens), positions, self.width, [len(tokens)], [start])
        self.target.backend.init_forward_metadata(self.target.batch(row, made))
        logits, features = self.target.forward(made.draft_token, positions, slots)
        return logits, features @ self.project

    def alone(self, request: int) -> list[int]:
        """Decode greedily, one token at a time."""
        text = list(self.prompts[request])
        start = 0
        while len(text) < len(self.prompts[request]) + NEW:
            logits, _ = self.forward(request, text[start:], start)
            start = len(text)
            text.append(int(logits[-1].argmax()))
        return text[len(self.prompts[request]) :]

    def prefill(self, request: int) -> int:
        self.path.flush()
        prompt = self.prompts[request]
        logits, features = self.forward(request, prompt, 0)
        positions = torch.arange(len(prompt))
        self.pool.write_context(self.drafter, features, positions, self.table[request + 1, positions].long())
        return int(logits[-1].argmax())

    def running(self, texts: dict[int, list[int]], rows: RowSampling, drafted: Tensor | None = None) -> Running:
        requests = torch.tensor(list(texts)) + 1
        lengths = torch.tensor([len(self.prompts[r]) + len(text) - 1 for r, text in texts.items()])
        layout = BlockLayout.build(
            seq_lens=lengths,
            prefix_lens_cpu=lengths,
            req_pool_indices=requests,
            req_to_token=self.table,
            offsets=torch.arange(self.width),
            max_positions=200,
        )
        anchors = torch.tensor([text[-1] for text in texts.values()])
        return Running(anchors, lengths, requests, layout, rows, np.zeros(len(texts), np.int64), drafted)

    def decode(self, texts: dict[int, list[int]], rows: RowSampling, plan: DevicePlan) -> Verdict:
        """Run one step as the worker does, and append what it emits."""
        running = self.running(texts, rows)
        batch: Any = SimpleNamespace(
            spec_info=SimpleNamespace(bonus_tokens=running.anchors),
            seq_lens=running.seq_lens,
            req_pool_indices=running.request_rows,
        )
        step: Any = SimpleNamespace(kinds=running.kinds, drafted=None)
        verdict: Verdict = device_decode.run(
            self.worker, batch, running.layout, rows, step, plan, publish=lambda lens: None
        )
        for place, text in enumerate(texts.values()):
            text += verdict.out_tokens[place, : verdict.accept_lens[place]].tolist()
        return verdict

    def step(self, texts: dict[int, list[int]], generator: np.random.Generator, turn: int) -> int:
        """Decode one step of these requests; returns the drafts accepted."""
        count = len(texts)
        rows = RowSampling.greedy(count, CPU)
        if turn % 5 == 4:
            return self.plain(texts, rows)
        drafted = None
        if count > 1 and turn % 3 == 1:
            drafted = torch.arange(count - 1)
        running = self.running(texts, rows, drafted)
        room = generator.integers(1, self.gamma + 1, count)
        if drafted is not None:
            room[-1] = 0
        least = np.minimum(room, generator.integers(0, 2, count))
        budget = int(generator.integers(0, room.sum() + 1))
        plan = DevicePlan(budget, room, least, min(budget + int(least.sum()), int(room.sum())))
        proposal = self.path.propose(running, plan)
        output, features, window = self.path.verify(running, plan, proposal)
        assert int(window.verify_lens.sum()) <= count + plan.most
        assert bool((window.verify_lens <= torch.tensor(plan.bounds)).all())
        verdict = accept(proposal.block, window, output.next_token_logits, rows)
        self.path.commit(features, window)
        for place, text in enumerate(texts.values()):
            text += verdict.out_tokens[place, : verdict.accept_lens[place]].tolist()
        return int(verdict.accept_lens.sum()) - count

    def plain(self, texts: dict[int, list[int]], rows: RowSampling) -> int:
        self.path.flush()
        running = self.running(texts, rows)
        window = running.layout.window(torch.ones(len(texts), dtype=torch.int64))
        output, features = self.path.verify_from_host(running, window, None)
        verdict = without_drafts(window, output.next_token_logits, rows, self.width)
        self.pool.write_context(self.drafter, features, window.pack(window.positions), window.pack(window.slots))
        for place, text in enumerate(texts.values()):
            text.append(int(verdict.out_tokens[place, 0]))
        return 0
