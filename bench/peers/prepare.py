"""The embedded model in the forms that peers read, made from its native checkpoint: exact BF16 weights under the published
names (every FP8 and FP4 value times its power-of-two scale is a BF16 number), and a GGUF by llama.cpp's own converter."""

import json
import os
import shutil
import subprocess
import sys
import tarfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "tools", "needle-model"))


def bf16_folder(model, folder):
    """A copy of the checkpoint with BF16 matrices and without quantization_config; made once."""
    target = os.path.join(folder, "bf16")
    if os.path.exists(os.path.join(target, "model.safetensors")):
        return target
    import numpy as np
    import torch
    from ckpt import _dense, read_safetensors, write_safetensors

    stored = read_safetensors(os.path.join(model, "model.safetensors"))
    tensors = {}
    for name, (dtype, shape, data) in stored.items():
        if name.endswith(".scale"):
            continue
        if dtype in ("F32", "I64", "BF16"):
            tensors[name] = (dtype, shape, data)
            continue
        exact = _dense(stored, name)
        narrow = exact.to(torch.bfloat16)
        if not torch.equal(narrow.float(), exact):
            raise SystemExit(f"{name} has values that BF16 cannot hold")
        tensors[name] = ("BF16", list(exact.shape), np.ascontiguousarray(narrow.view(torch.int16).numpy()).tobytes())
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.pop("quantization_config")
    config["expert_dtype"] = "bf16"
    with open(os.path.join(target, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(model, name), target)
    write_safetensors(os.path.join(target, "model.safetensors"), tensors)
    return target


def converter_folder(source, folder):
    """Where convert_hf_to_gguf.py lies: `source` is a checkout of llama.cpp, or a source distribution that holds one."""
    if source.endswith(".tar.gz"):
        with tarfile.open(source) as archive:
            names = [name for name in archive.getnames() if name.endswith("/convert_hf_to_gguf.py")]
            if not names:
                raise RuntimeError(f"{source} holds no convert_hf_to_gguf.py")
            parent = os.path.dirname(names[0])
            wanted = tuple(f"{parent}/{part}" for part in ("convert_hf_to_gguf.py", "conversion/", "gguf-py/"))
            archive.extractall(folder, [m for m in archive.getmembers() if m.name.startswith(wanted)], filter="data")
        source = os.path.join(folder, parent)
    if not os.path.exists(os.path.join(source, "convert_hf_to_gguf.py")):
        raise RuntimeError(f"{source} holds no convert_hf_to_gguf.py")
    return source


def gguf_file(model, folder, source, outtype):
    """The checkpoint as GGUF, by the converter that `source` holds. Raises with the converter's last words."""
    target = os.path.join(folder, f"needle-{outtype}.gguf")
    if os.path.exists(target):
        return target
    os.makedirs(folder, exist_ok=True)
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "convert_gguf.py"),
               converter_folder(source, folder), model, target, outtype]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0 or not os.path.exists(target):
        words = [line for line in (run.stderr + run.stdout).splitlines() if line.strip()]
        raise RuntimeError("the converter said: " + " | ".join(words[-3:]))
    return target
