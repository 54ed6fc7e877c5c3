"""Compare this folder's exact mode with the published reference implementation, whose inference folder is given by path.

  refcheck.py --reference DIR --ckpt DIR [--native]
The reference (model.py and a pure-torch kernel.py) runs with bf16 weights on the dequantised checkpoint; with --native it runs the
FP8 and FP4 linears, which needs a torch with float8.  Its in-place quantisers are replaced by ones that round, which the pure-torch
kernel.py omits.  Prints the relative difference of the logits and both arg-max tokens for a prefill and its decode steps.
"""

import argparse
import contextlib
import importlib.util
import sys

import numpy as np
import torch

import ckpt
import quantizers
from model import CFG, Mode
from task import Task, add_data_arguments

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@contextlib.contextmanager
def reference_defaults():
    """The reference creates its tensors with torch's defaults, which this folder's code expects to be plain."""
    torch.set_default_dtype(torch.bfloat16)
    if ON_GPU:
        torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        if ON_GPU:
            torch.set_default_device("cpu")


def act_quant(x, block_size=128, scale_fmt=None, scale_dtype=torch.float32, inplace=False):
    if inplace:
        x.copy_(quantizers.q8_act(x, block_size))
        return x
    blocks = x.float().unflatten(-1, (-1, block_size))
    scale = quantizers.pow2ceil(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448)
    return (blocks / scale).clamp(-448, 448).flatten(-2).to(torch.float8_e4m3fn), scale.squeeze(-1)


def fp4_act_quant(x, block_size=32, inplace=True):
    x.copy_(quantizers.q4_act(x, block_size))
    return x


def import_file(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_reference(folder, length, native):
    for name in ("float8_e8m0fnu", "float8_e4m3fn", "float4_e2m1fn_x2"):
        if not hasattr(torch, name):
            setattr(torch, name, name)
    kernel = import_file("kernel", folder + "/kernel.py")  # the reference's model.py imports it by this name
    kernel.act_quant, kernel.fp4_act_quant = act_quant, fp4_act_quant
    reference = import_file("reference_model", folder + "/model.py")
    c, yarn = CFG, CFG["rope_scaling"]
    with reference_defaults():
        return reference.Transformer(
            reference.ModelArgs(
                max_batch_size=1,
                max_seq_len=max(length, 1024),
                dtype="fp8" if native else "bf16",
                scale_fmt="ue8m0",
                expert_dtype="fp4" if native else None,
                scale_dtype="fp32",
                vocab_size=c["vocab_size"],
                dim=c["hidden_size"],
                moe_inter_dim=c["moe_intermediate_size"],
                n_layers=c["num_hidden_layers"],
                n_hash_layers=c["num_hash_layers"],
                n_mtp_layers=0,
                n_heads=c["num_attention_heads"],
                n_routed_experts=c["n_routed_experts"],
                n_activated_experts=c["num_experts_per_tok"],
                route_scale=c["routed_scaling_factor"],
                swiglu_limit=c["swiglu_limit"],
                q_lora_rank=c["q_lora_rank"],
                head_dim=c["head_dim"],
                rope_head_dim=c["qk_rope_head_dim"],
                o_groups=c["o_groups"],
                o_lora_rank=c["o_lora_rank"],
                window_size=c["sliding_window"],
                compress_ratios=tuple(c["compress_ratios"]),
                compress_rope_theta=c["compress_rope_theta"],
                original_seq_len=yarn["original_max_position_embeddings"],
                rope_theta=c["rope_theta"],
                rope_factor=float(yarn["factor"]),
                index_n_heads=c["index_n_heads"],
                index_head_dim=c["index_head_dim"],
                index_topk=c["index_topk"],
                hc_mult=c["hc_mult"],
            )
        )


def copy_weights(R, M, folder, native):
    flat = dict(M.buf)
    for k, p in M.p.items():
        if M.kind[k] == "fp4":
            for e in range(p.shape[0]):
                flat[k.replace(".experts.", f".experts.{e}.") + ".weight"] = p.data[e]
        else:
            flat[k] = p.data
    stored = ckpt.read_safetensors(folder + "/model.safetensors") if native else {}
    used = set()
    for n, p in R.named_parameters():
        if native and (n.endswith(".scale") or p.dtype in (torch.float8_e4m3fn, torch.float4_e2m1fn_x2)):
            _, shape, raw = stored[n]
            p.data.view(torch.uint8).copy_(torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(shape).copy()))
        else:
            p.data.copy_(flat[n].to(p.dtype))
        used.add(n)
    for layer in R.layers:
        if layer.ffn.gate.hash:
            table = layer.ffn.gate.tid2eid.data.long()
            layer.ffn.gate.tid2eid = torch.nn.Parameter(table, requires_grad=False)
    print("weights that the reference does not have:", [k for k in flat if k not in used])


@torch.no_grad()
def compare(R, M, T, length, native):
    rng = np.random.default_rng(5)
    mode = Mode(hp=True, kv8=True, idx="fp4", topk=CFG["index_topk"], act8=native)
    for i in range(3):
        ids, pos, _ = T.eval_sample(length, 0.3, rng, 128)
        cut = int(pos[0])
        with reference_defaults():
            wanted = [R(torch.from_numpy(ids[None, :cut].astype(np.int64)).to(DEVICE), 0)[0].float()]
            for j, p in enumerate(pos):  # decode: the true value tokens one by one
                wanted.append(R(torch.tensor([[int(ids[p])]], device=DEVICE), cut + j)[0].float())
        hidden = M.forward(torch.from_numpy(ids[None].astype(np.int64)).to(DEVICE), mode)
        found = M.logits(hidden[0, cut - 1 : cut + len(pos)])
        for j, r in enumerate(wanted):
            difference = (r - found[j]).norm() / r.norm()
            print(f"sample {i} position {cut - 1 + j}: relative difference {difference:.4f}, "
                  f"arg-max {int(r.argmax())} / {int(found[j].argmax())}, true {int(ids[cut + j])}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--reference", required=True, help="folder of the reference's model.py and kernel.py")
    ap.add_argument("--ckpt", required=True, help="folder of the exported checkpoint, weights unpacked")
    ap.add_argument("--native", action="store_true", help="FP8 and FP4 linears instead of bf16")
    ap.add_argument("--length", type=int, default=640)
    add_data_arguments(ap)
    A = ap.parse_args()
    R = load_reference(A.reference, A.length, A.native)
    M = ckpt.load_native(A.ckpt, DEVICE, torch.bfloat16)
    copy_weights(R, M, A.ckpt, A.native)
    compare(R, M, Task(A.corpus, A.tokenizer, "held"), A.length, A.native)


if __name__ == "__main__":
    main()
