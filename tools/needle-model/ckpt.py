"""Write and read the NATIVE checkpoint format (safetensors with FP4+ue8m0 experts, FP8 128x128 dense weights, bf16, f32).

  ckpt.py MASTER.pt OUT_DIR --tokenizer DIR     exports the master weights, reads the result back and compares every tensor
The reader needs no safetensors package and no float8 support in torch.
"""

import argparse
import json
import os
import shutil
import struct

import numpy as np
import torch

from model import CFG, Model, configure
from quantizers import w4, w4_parts, w8, w8_parts


def _e4m3_lut():
    v = np.zeros(256, np.float32)
    for b in range(256):
        e, m = (b >> 3) & 15, b & 7
        v[b] = (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)) * (-1 if b & 128 else 1)
    v[127] = v[255] = np.nan
    return v


E4M3, E2M1 = _e4m3_lut(), np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)


def _codes(v, lut, n, sign):
    v = v.numpy().astype(np.float32)
    i = np.searchsorted(lut[:n], np.abs(v))
    assert (lut[i] == np.abs(v)).all()
    return (i | np.where(np.signbit(v) & (v != 0), sign, 0)).astype(np.uint8)


def _scale_byte(s):
    e = torch.log2(s).round()
    assert (torch.pow(2.0, e) == s).all()
    return (e + 127).clamp(0, 254).to(torch.uint8).numpy()


def native_tensors(M):
    """name -> (safetensors dtype, shape, bytes) in the naming of the published checkpoint."""
    out = {}
    put = lambda k, dt, a: out.__setitem__(k, (dt, list(a.shape), np.ascontiguousarray(a).tobytes()))
    for k, w in M.p.items():
        w = w.detach().float().cpu()
        kind = M.kind[k]
        if kind == "f32":
            put(k, "F32", w.numpy())
        elif kind == "bf16":
            put(k, "BF16", w.bfloat16().view(torch.int16).numpy())
        elif kind == "fp8":
            q, s = w8_parts(w)
            put(k, "F8_E4M3", _codes(q.reshape(w.shape), E4M3, 127, 128))
            put(k.replace(".weight", ".scale"), "F8_E8M0", _scale_byte(s[:, 0, :, 0]))
        else:
            for e in range(w.shape[0]):
                q, s = w4_parts(w[e])
                c = _codes(q.flatten(-2), E2M1, 8, 8)
                name = k.replace(".experts.", f".experts.{e}.")
                put(name + ".weight", "I8", (c[:, 0::2] | (c[:, 1::2] << 4)).astype(np.uint8))
                put(name + ".scale", "F8_E8M0", _scale_byte(s[..., 0]))
    for k, b in M.buf.items():
        b = b.cpu()
        put(k, "I64" if "tid2eid" in k else "F32", b.long().numpy() if "tid2eid" in k else b.float().numpy())
    return out


def write_safetensors(path, tensors):
    head, off = {"__metadata__": {"format": "pt"}}, 0
    for k, (dt, sh, b) in tensors.items():
        head[k] = {"dtype": dt, "shape": sh, "data_offsets": [off, off + len(b)]}
        off += len(b)
    h = json.dumps(head).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)))
        f.write(h)
        for _, _, b in tensors.values():
            f.write(b)


def read_safetensors(path):
    d = open(path, "rb").read()
    n = struct.unpack("<Q", d[:8])[0]
    h = json.loads(d[8 : 8 + n])
    h.pop("__metadata__", None)
    return {
        k: (v["dtype"], v["shape"], d[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]])
        for k, v in h.items()
    }


def _dense(t, name):
    dt, sh, b = t[name]
    if dt == "F32":
        return torch.from_numpy(np.frombuffer(b, np.float32).reshape(sh).copy())
    if dt == "I64":
        return torch.from_numpy(np.frombuffer(b, np.int64).reshape(sh).copy())
    if dt == "BF16":
        return torch.from_numpy(
            (np.frombuffer(b, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(sh).copy()
        )
    u = np.frombuffer(b, np.uint8).reshape(sh)
    sdt, ssh, sb = t[name.replace(".weight", ".scale")]
    s = 2.0 ** (np.frombuffer(sb, np.uint8).reshape(ssh).astype(np.float32) - 127)
    if dt == "F8_E4M3":
        return torch.from_numpy(E4M3[u] * np.kron(s, np.ones((128, 128), np.float32)))
    w = np.stack((E2M1[u & 15], E2M1[u >> 4]), -1).reshape(sh[0], -1)
    return torch.from_numpy((w * np.repeat(s, 32, 1)).astype(np.float32))


def load_native(folder, device="cpu", cd=torch.float32, skip=None):
    """Model whose weights are exactly the dequantised checkpoint; parameters with `skip` in their names stay as drawn."""
    M = Model(CFG, device, cd)
    t = read_safetensors(folder + "/model.safetensors")
    with torch.no_grad():
        for k, p in M.p.items():
            if skip and skip in k:
                continue
            if M.kind[k] == "fp4":
                v = torch.stack(
                    [
                        _dense(t, k.replace(".experts.", f".experts.{e}.") + ".weight")
                        for e in range(p.shape[0])
                    ]
                )
            else:
                v = _dense(t, k)
            p.data.copy_(v)
    for k, b in M.buf.items():
        b.copy_(_dense(t, k))
    return M


def save_master(M, path):
    """The bf16 master weights and the routing buffers, in one file."""
    flat = {k: v.detach().to("cpu", torch.bfloat16) for k, v in M.p.items()}
    flat.update({"buf:" + k: v.to("cpu") for k, v in M.buf.items()})
    torch.save(flat, path)


def restore_master(M, path):
    for k, v in torch.load(path, map_location=M.dev).items():
        (M.buf[k[4:]] if k.startswith("buf:") else M.p[k].data).copy_(v)


def adopt_config(folder):
    """Take over the settings of a checkpoint's config.json that CFG has."""
    with open(folder + "/config.json", encoding="utf-8") as stream:
        config = json.load(stream)
    shared = {k: v for k, v in config.items() if k in CFG and k != "compress_ratios"}
    configure(shared)


def load_master(path, device="cpu", cd=torch.float32):
    M = Model(CFG, device, cd)
    restore_master(M, path)
    return M


def hf_config():
    c = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 65536,
        "model_type": "deepseek_v4",
        "norm_topk_prob": True,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 0,
        "scoring_func": "sqrtsoftplus",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.1",
        "use_cache": True,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }
    c.update(CFG)
    c["rope_theta"], c["compress_rope_theta"] = 10000, 160000
    c["compress_ratios"] = CFG["compress_ratios"] + [0]  # last entry: the (absent) MTP layer, as in the real file
    return dict(sorted(c.items()))


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2)


def export(M, out, tokenizer):
    os.makedirs(out, exist_ok=True)
    write_safetensors(out + "/model.safetensors", native_tensors(M))
    write_json(out + "/config.json", hf_config())
    generation = {
        "_from_model_config": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "do_sample": False,
        "temperature": 1.0,
        "top_p": 1.0,
        "transformers_version": "4.46.3",
    }
    write_json(out + "/generation_config.json", generation)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokenizer}/{f}", out)


def stored(w, kind):
    """What the native format keeps of a master weight."""
    rounding = {"fp8": w8, "fp4": w4, "bf16": lambda x: x.bfloat16().float(), "f32": lambda x: x}
    return rounding[kind](w).float()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("master")
    ap.add_argument("out")
    ap.add_argument("--tokenizer", required=True, help="folder with tokenizer.json and tokenizer_config.json")
    ap.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER", help="change a setting of model.CFG")
    A = ap.parse_args()
    configure({name: int(value) for name, value in (s.split("=") for s in A.set)})
    master = load_master(A.master)
    export(master, A.out, A.tokenizer)
    exported = load_native(A.out)
    for k, w in master.p.items():
        if not torch.equal(stored(w.detach(), master.kind[k]), exported.p[k].detach().float()):
            raise SystemExit(f"{k}: what was read back differs from what was written")
    print("export verified,", os.path.getsize(A.out + "/model.safetensors"), "bytes")


if __name__ == "__main__":
    main()
