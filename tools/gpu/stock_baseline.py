#!/usr/bin/env python3
"""Decode speed of the stock PyTorch path, for the ratio in docs/performance.md.

    tools/gpu/stock_baseline.py CONFIG.json [CONTEXT] [OUT.json]

Builds transformers' DeepseekV4ForCausalLM from a published config.json at true widths with random BF16 weights and 2
and 4 layers (a pair is one layer of ratio 4 and one of ratio 128), prefills CONTEXT tokens and times single-token steps
with the model's own cache. The difference of the two models is one pair; 43 layers are the fixed part and 21.5 pairs.
"""
import json
import statistics
import sys
import time

import torch
import transformers


def build(config, layers):
    values = dict(config)
    values.pop("quantization_config", None)
    values.update(num_hidden_layers=layers, compress_ratios=[4, 128] * (layers // 2), num_hash_layers=0,
                  num_nextn_predict_layers=0, torch_dtype="bfloat16")
    if "layer_types" in values:
        values.pop("layer_types")
    made = transformers.AutoConfig.for_model(**values)
    made._attn_implementation = "eager"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    return model.eval()


@torch.inference_mode()
def step_ms(model, context, steps=12):
    ids = torch.randint(0, 1000, (1, context), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = model(ids, use_cache=True, logits_to_keep=1)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        times = []
        for _ in range(steps):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            out = model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def main(path, context=4096, out=None):
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    results = {}
    for layers in (2, 4):
        model = build(config, layers)
        results[layers] = step_ms(model, int(context))
        del model
        torch.cuda.empty_cache()
    pair = results[4] - results[2]
    whole = results[2] - pair + pair * 43 / 2
    report = {"benchmark": "stock decode", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "transformers": transformers.__version__, "context": int(context), "ms_2_layers": results[2],
              "ms_4_layers": results[4], "ms_43_layers_extrapolated": whole, "tokens_per_second": 1e3 / whole}
    print(json.dumps(report))
    if out:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
