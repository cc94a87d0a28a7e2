"""Writes an optimizer step of SmolLM2-135M in JAX as StableHLO, for `forebay-bench learner`.

    jax_learner.py OUT_DIR ROWS LENGTH

One VARIANT.mlir and VARIANT.json (arguments, results, donations) each. The step is the one of
forebay/learner as somebody who knows JAX would write it: packed rows, causal attention within
segments, log-probabilities in chunks, decoupled PPO loss with truncated importance sampling, AdamW
with clipping by global norm, weights and moments donated. Weights have Hugging Face's names and
layouts, so that both sides can start from the same checkpoint and must report the same loss.

VARIANTS differ in what is traded for speed:
  unrolled         a layer each, activations kept
  unrolled_flat    the same, attention as [rows x kv heads, group x length, dim] batches
  scan             one scan over stacked layers, activations kept
  scan_remat       one scan, each layer recomputed in the backward pass
"""

import json
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, FF, VOCAB = 30, 576, 9, 3, 1536, 49152
HEAD_DIM, GROUP, THETA, EPS = WIDTH // HEADS, HEADS // KV_HEADS, 1e5, 1e-5
CHUNK = 512  # tokens whose logits exist at once
BETA1, BETA2, ADAM_EPS, CLIP, IS_CAP = 0.9, 0.95, 1e-8, 1.0, 2.0

LAYER = {
    "input_layernorm.weight": (WIDTH,),
    "self_attn.q_proj.weight": (WIDTH, WIDTH),
    "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
    "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, WIDTH),
    "post_attention_layernorm.weight": (WIDTH,),
    "mlp.gate_proj.weight": (FF, WIDTH),
    "mlp.up_proj.weight": (FF, WIDTH),
    "mlp.down_proj.weight": (WIDTH, FF),
}
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


def param_shapes(stacked):
    shapes = {EMBED: (VOCAB, WIDTH), NORM: (WIDTH,)}
    for suffix, dims in LAYER.items():
        if stacked:
            shapes[f"model.layers.*.{suffix}"] = (LAYERS, *dims)
        else:
            for i in range(LAYERS):
                shapes[f"model.layers.{i}.{suffix}"] = dims
    return shapes


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def rotate(x, cos, sin):
    low, high = jnp.split(x, 2, -1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def attention(q, k, v, mask, flat):
    b, t = q.shape[:2]
    q = q.reshape(b, t, KV_HEADS, GROUP, HEAD_DIM)
    if not flat:
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / np.sqrt(HEAD_DIM)
        probs = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), -1)
        return jnp.einsum("bkgts,bskd->btkgd", probs, v).reshape(b, t, WIDTH)
    q = q.transpose(0, 2, 3, 1, 4).reshape(b * KV_HEADS, GROUP * t, HEAD_DIM)
    k = k.transpose(0, 2, 1, 3).reshape(b * KV_HEADS, t, HEAD_DIM)
    v = v.transpose(0, 2, 1, 3).reshape(b * KV_HEADS, t, HEAD_DIM)
    scores = jnp.einsum("pmd,psd->pms", q, k) / np.sqrt(HEAD_DIM)
    scores = scores.reshape(b, KV_HEADS, GROUP, t, t)
    probs = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), -1)
    out = jnp.einsum("pms,psd->pmd", probs.reshape(b * KV_HEADS, GROUP * t, t), v)
    out = out.reshape(b, KV_HEADS, GROUP, t, HEAD_DIM)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, t, WIDTH)


def make_step(stacked, remat, flat):
    def hidden(p, tokens, segments, positions):
        b, t = tokens.shape
        x = p[EMBED][tokens]
        frequencies = THETA ** (-jnp.arange(0, HEAD_DIM // 2) / (HEAD_DIM // 2))
        angles = positions[..., None, None] * frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        causal = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
        mask = (segments[:, :, None] == segments[:, None, :]) & causal

        def layer(x, w):
            h = rms_norm(x, w["input_layernorm.weight"])
            q = rotate((h @ w["self_attn.q_proj.weight"].T).reshape(b, t, HEADS, HEAD_DIM), cos, sin)
            k = rotate((h @ w["self_attn.k_proj.weight"].T).reshape(b, t, KV_HEADS, HEAD_DIM), cos, sin)
            v = (h @ w["self_attn.v_proj.weight"].T).reshape(b, t, KV_HEADS, HEAD_DIM)
            x = x + attention(q, k, v, mask, flat) @ w["self_attn.o_proj.weight"].T
            h = rms_norm(x, w["post_attention_layernorm.weight"])
            gate = jax.nn.silu(h @ w["mlp.gate_proj.weight"].T)
            return x + (gate * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T

        if remat:
            layer = jax.checkpoint(layer)
        if stacked:
            weights = {s: p[f"model.layers.*.{s}"] for s in LAYER}
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        else:
            for i in range(LAYERS):
                x = layer(x, {s: p[f"model.layers.{i}.{s}"] for s in LAYER})
        return rms_norm(x, p[NORM])

    def logprobs(h, head, targets):
        @jax.checkpoint
        def chunk(h, targets):
            logits = h @ head.T
            chosen = jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]
            return chosen - jax.nn.logsumexp(logits, -1)

        n = h.shape[0]
        chunks = [slice(i, min(i + CHUNK, n)) for i in range(0, n, CHUNK)]
        if len(chunks) <= 4:
            return jnp.concatenate([chunk(h[c], targets[c]) for c in chunks])
        assert n % CHUNK == 0
        pair = (h.reshape(-1, CHUNK, WIDTH), targets.reshape(-1, CHUNK))
        return jax.lax.map(lambda x: chunk(*x), pair).reshape(n)

    def loss_fn(p, ints, floats):
        tokens, targets, segments, positions = ints
        weights, advantages, rollout, inverse_temperature = floats.reshape(4, -1)
        used = weights > 0
        h = hidden(p, tokens, segments, positions).reshape(-1, WIDTH)
        h = h * jnp.where(used, inverse_temperature, 1)[:, None]
        logp = logprobs(h, p[EMBED], targets.reshape(-1))
        proximal = jax.lax.stop_gradient(logp)
        ratio = jnp.exp(jnp.where(used, logp - proximal, 0))
        gap = jnp.where(used, proximal - rollout, 0)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        token_loss = -jnp.minimum(jnp.exp(gap), IS_CAP) * jnp.minimum(
            ratio * advantages, clipped * advantages)
        loss = jnp.sum(jnp.where(used, weights * token_loss, 0))
        kl = jnp.sum(jnp.where(used, jnp.exp(-gap) + gap - 1, 0))
        return loss, jnp.stack([loss, jnp.sum(used), jnp.sum(jnp.where(used, jnp.exp(gap), 0)), kl])

    def step(p, m, v, ints, floats, hyper):
        (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(p, ints, floats)
        norm = jnp.sqrt(sum(jnp.sum(jnp.sum(g * g, -1)) for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(CLIP / (norm + 1e-6), 1.0)
        grads = jax.tree.map(lambda g: g * scale, grads)
        m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, grads)
        v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, grads)
        p = jax.tree.map(
            lambda p, m, v: p - hyper[0] * (m * hyper[1]) / (jnp.sqrt(v * hyper[2]) + ADAM_EPS),
            p, m, v)
        return p, m, v, metrics, norm

    return step


VARIANTS = {
    "unrolled": dict(stacked=False, remat=False, flat=False),
    "unrolled_flat": dict(stacked=False, remat=False, flat=True),
    "scan": dict(stacked=True, remat=False, flat=False),
    "scan_remat": dict(stacked=True, remat=True, flat=False),
}


def describe(x):
    return {"dtype": {"float32": "f32", "int32": "s32"}[str(x.dtype)], "dims": list(x.shape)}


def main():
    out, rows, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(out, exist_ok=True)
    f32, s32 = jnp.float32, jnp.int32
    for name, options in VARIANTS.items():
        shapes = param_shapes(options["stacked"])
        tree = {k: jax.ShapeDtypeStruct(dims, f32) for k, dims in shapes.items()}
        inputs = (tree, tree, tree, jax.ShapeDtypeStruct((4, rows, length), s32),
                  jax.ShapeDtypeStruct((4, rows, length), f32), jax.ShapeDtypeStruct((3,), f32))
        lowered = jax.jit(make_step(**options), donate_argnums=(0, 1, 2)).lower(*inputs)
        text = lowered.as_text()
        main_line = next(line for line in text.splitlines() if "func.func public @main" in line)
        donated = {}
        for match in re.finditer(r"%arg(\d+): tensor<[^>]*> (\{[^}]*\})?", main_line):
            alias = re.search(r"tf\.aliasing_output = (\d+)", match.group(2) or "")
            if alias:
                donated[int(match.group(1))] = int(alias.group(1))
        names = sorted(shapes)
        arguments = [f"{part}:{n}" for part in ("p", "m", "v") for n in names]
        arguments += ["ints", "floats", "hyper"]
        leaves = jax.tree.leaves(inputs)
        assert len(leaves) == len(arguments)
        assert len(donated) == 3 * len(names), "a donation is missing"
        results = jax.tree.leaves(lowered.out_info)
        side = {
            "jax": jax.__version__, "rows": rows, "length": length,
            "arguments": [{"name": n, **describe(x), "donated_to": donated.get(i, -1)}
                          for i, (n, x) in enumerate(zip(arguments, leaves))],
            "results": [describe(x) for x in results],
        }
        with open(os.path.join(out, f"{name}.mlir"), "w") as file:
            file.write(text)
        with open(os.path.join(out, f"{name}.json"), "w") as file:
            json.dump(side, file)
        print(f"{name}: {len(text) >> 10} KiB of StableHLO")


if __name__ == "__main__":
    main()
