"""Makes a parity model beside this file, as README.md describes it:

    python make_reference.py qwen3_moe | llama3_rope

Needs torch 2.8 and transformers 4.57.6. `check FOLDER` compares an existing folder with what this script computes.
"""
import json
import os
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=512, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              intermediate_size=160, max_position_embeddings=256, attn_implementation="eager", dtype="float32")


def build(name):
    torch.manual_seed(20)
    if name == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(
            **COMMON, head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48, norm_topk_prob=True,
            rope_theta=1e6, tie_word_embeddings=False, output_router_logits=False, router_aux_loss_coef=0.0)
        model = transformers.Qwen3MoeForCausalLM(config)
    elif name == "llama3_rope":
        config = transformers.LlamaConfig(
            **COMMON, rope_theta=5e5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
            rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=64))
        model = transformers.LlamaForCausalLM(config)
    else:
        sys.exit(__doc__)
    with torch.no_grad():  # away from neutral norms and from logits of nearly zero
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
            else:
                parameter.copy_(0.08 * torch.randn_like(parameter))
    return model


def reference(model, sequences):
    out, total = {}, torch.zeros(())
    model.eval()
    for i, ids in enumerate(sequences):
        logits = model(ids[None]).logits[0]
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None].long())[:, 0]
        weights = torch.tensor([1.0 if t % 2 == 0 else -0.5 for t in range(len(ids) - 1)])
        total = total - (weights * logprobs).sum() / 107
        out |= {f"seq{i}.input_ids": ids.to(torch.int32), f"seq{i}.logits": logits.detach(),
                f"seq{i}.logprobs": logprobs.detach()}
    total.backward()
    out["loss"] = total.detach()[None]
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        out["grad." + name] = gradient
    ids, chosen = sequences[1], []
    with torch.no_grad():
        for _ in range(16):
            chosen.append(int(model(ids[None]).logits[0, -1].argmax()))
            ids = torch.cat([ids, torch.tensor([chosen[-1]])])
    out["seq1.greedy16"] = torch.tensor(chosen, dtype=torch.int32)
    return {k: v.contiguous() for k, v in out.items()}


def check(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    known = load_file(os.path.join(folder, "reference.safetensors"))
    ours = reference(model, [known[f"seq{i}.input_ids"].long() for i in range(3)])
    assert set(ours) == set(known), set(ours) ^ set(known)
    print(max((ours[k].double() - known[k].double()).abs().max().item() for k in known))


def main():
    if sys.argv[1] == "check":
        return check(sys.argv[2])
    model = build(sys.argv[1])
    generator = torch.Generator().manual_seed(7)
    sequences = [torch.randint(0, 512, (n,), generator=generator) for n in (37, 23, 50)]
    folder = os.path.join(HERE, sys.argv[1])
    model.save_pretrained(folder)
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    json.dump(config, open(path, "w"), indent=2, sort_keys=True)
    save_file(reference(model, sequences), os.path.join(folder, "reference.safetensors"))


main()
