"""Runs an optimizer step of SmolLM2-135M in PyTorch on the CPU, for `forebay-bench learner`.

    torch_learner.py MODEL.safetensors BATCH SOCKET VARIANT

BATCH is a file of the planes of a MicroBatch: rows and length (int64), then ints [4, rows, length]
(int32: tokens, targets, segments, positions) and floats [4, rows, length] (float32: weights,
advantages, rollout log-probabilities, inverse temperatures). When it is ready it listens on SOCKET for
one client: each line, a learning rate, is one step, answered by a line of JSON with its seconds, loss
and gradient norm.

The step is the one of forebay/learner as somebody who knows PyTorch would write it: packed rows,
PyTorch's own attention once for each segment (so that nothing outside of it is computed), decoupled
PPO loss with truncated importance sampling, its fused AdamW with clipping by global norm.

VARIANTS: eager, compiled (torch.compile with its default backend).
"""

import json
import os
import socket
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

LAYERS, WIDTH, HEADS, KV_HEADS = 30, 576, 9, 3
HEAD_DIM, THETA, EPS = WIDTH // HEADS, 1e5, 1e-5
BETAS, ADAM_EPS, CLIP, IS_CAP = (0.9, 0.95), 1e-8, 1.0, 2.0
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


def read_batch(path):
    with open(path, "rb") as file:
        rows, length = np.fromfile(file, np.int64, 2)
        ints = np.fromfile(file, np.int32, 4 * rows * length)
        floats = np.fromfile(file, np.float32, 4 * rows * length)
    dims = (4, rows * length)
    ints, floats = ints.reshape(dims), floats.reshape(dims)
    # Where a segment of a row begins and ends, over all rows.
    segment = ints[2].reshape(rows, length) + np.arange(rows)[:, None] * (length + 1)
    cuts = np.flatnonzero(np.diff(segment.reshape(-1))) + 1
    bounds = [0, *cuts.tolist(), rows * length]
    return torch.from_numpy(ints).long(), torch.from_numpy(floats), list(zip(bounds, bounds[1:]))


def make_loss(ints, floats, spans):
    tokens, targets, _, positions = ints
    weights, advantages, rollout, inverse_temperature = floats
    used = weights > 0
    frequencies = THETA ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = positions[:, None] * frequencies
    cos, sin = torch.cos(angles)[:, None], torch.sin(angles)[:, None]

    def rotate(x):
        low, high = x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def attend(q, k, v):
        parts = []
        for begin, end in spans:
            part = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
            out = F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts).reshape(-1, WIDTH)

    def layer(x, p, i):
        w = lambda suffix: p[f"model.layers.{i}.{suffix}.weight"]
        h = F.rms_norm(x, (WIDTH,), w("input_layernorm"), EPS)
        q = rotate(F.linear(h, w("self_attn.q_proj")).view(-1, HEADS, HEAD_DIM))
        k = rotate(F.linear(h, w("self_attn.k_proj")).view(-1, KV_HEADS, HEAD_DIM))
        v = F.linear(h, w("self_attn.v_proj")).view(-1, KV_HEADS, HEAD_DIM)
        x = x + F.linear(attend(q, k, v), w("self_attn.o_proj"))
        h = F.rms_norm(x, (WIDTH,), w("post_attention_layernorm"), EPS)
        gate = F.silu(F.linear(h, w("mlp.gate_proj")))
        return x + F.linear(gate * F.linear(h, w("mlp.up_proj")), w("mlp.down_proj"))

    def loss(p):
        x = F.embedding(tokens, p[EMBED])
        for i in range(LAYERS):
            x = layer(x, p, i)
        x = F.rms_norm(x, (WIDTH,), p[NORM], EPS)
        x = x * torch.where(used, inverse_temperature, 1.0)[:, None]
        wanted = torch.where(used, targets, -100)
        logp = -F.cross_entropy(F.linear(x, p[EMBED]), wanted, reduction="none")
        proximal = logp.detach()
        ratio = torch.exp(logp - proximal)
        gap = torch.where(used, proximal - rollout, 0.0)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        token_loss = -gap.exp().clamp(max=IS_CAP) * surrogate
        return torch.where(used, weights * token_loss, 0.0).sum()

    return loss


def main():
    model, batch, address, variant = sys.argv[1:5]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    params = {k: v.float().requires_grad_() for k, v in load_file(model).items()}
    params.pop("lm_head.weight", None)  # tied
    loss_of = make_loss(*read_batch(batch))
    if variant == "compiled":
        loss_of = torch.compile(loss_of)
    leaves = list(params.values())
    optimizer = torch.optim.AdamW(leaves, betas=BETAS, eps=ADAM_EPS, weight_decay=0.0, fused=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        client = server.accept()[0].makefile("rw")
    for line in client:
        start = time.perf_counter()
        optimizer.param_groups[0]["lr"] = float(line)
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(leaves, CLIP)
        optimizer.step()
        outcome = {"loss": loss.item(), "grad_norm": norm.item()}
        outcome["seconds"] = time.perf_counter() - start
        outcome["torch"] = torch.__version__
        print(json.dumps(outcome), file=client, flush=True)


if __name__ == "__main__":
    main()
