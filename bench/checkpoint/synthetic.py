"""A checkpoint with the published tensor geometry of DeepSeek-V4-Flash (specification 4.1) and random values, for timing.

It has as many layers and routed experts as the wanted size takes and a small vocabulary; hidden sizes, and so the sizes of
every matrix, are the published ones. One shard a layer, as published.
"""

import json
import os
import random

HIDDEN, INNER, VOCABULARY, HC = 4096, 2048, 8192, 4
HEADS, HEAD, Q_RANK, O_RANK, O_GROUPS = 64, 512, 1024, 1024, 8
INDEX_HEADS, INDEX_HEAD = 64, 128
RATIOS = (0, 4, 128)
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "I64": 8}
# The order in which the published files lay out their dtypes.
RANK = {name: rank for rank, name in enumerate(("I64", "F32", "BF16", "F8_E8M0", "F8_E4M3", "I8"))}
EXPERT_BYTES = 3 * HIDDEN * INNER // 2 * 17 // 16  # three matrices of FP4 codes, one scale byte per 32 codes


def fp8(name, rows, cols):
    return [(name + ".weight", "F8_E4M3", [rows, cols]), (name + ".scale", "F8_E8M0", [-(-rows // 128), -(-cols // 128)])]


def compressor(name, width, rows):
    return [
        (name + ".wkv.weight", "BF16", [width, HIDDEN]),
        (name + ".wgate.weight", "BF16", [width, HIDDEN]),
        (name + ".ape", "F32", [rows, width]),
        (name + ".norm.weight", "BF16", [HEAD if "indexer" not in name else INDEX_HEAD]),
    ]


def layer_tensors(layer, ratio, experts):
    at = f"layers.{layer}."
    attention, ffn = at + "attn.", at + "ffn."
    tensors = [(at + name + "_norm.weight", "BF16", [HIDDEN]) for name in ("attn", "ffn")]
    for part in ("attn", "ffn"):
        mix = (2 + HC) * HC
        tensors += [
            (f"{at}hc_{part}_fn", "F32", [mix, HC * HIDDEN]),
            (f"{at}hc_{part}_base", "F32", [mix]),
            (f"{at}hc_{part}_scale", "F32", [3]),
        ]
    tensors.append((attention + "attn_sink", "F32", [HEADS]))
    tensors += fp8(attention + "wq_a", Q_RANK, HIDDEN) + fp8(attention + "wq_b", HEADS * HEAD, Q_RANK)
    tensors += fp8(attention + "wkv", HEAD, HIDDEN)
    tensors += fp8(attention + "wo_a", O_GROUPS * O_RANK, HEADS * HEAD // O_GROUPS)
    tensors += fp8(attention + "wo_b", HIDDEN, O_GROUPS * O_RANK)
    tensors += [(attention + "q_norm.weight", "BF16", [Q_RANK]), (attention + "kv_norm.weight", "BF16", [HEAD])]
    if ratio:
        # Ratio 4 pools two overlapping groups and so has twice the width.
        tensors += compressor(attention + "compressor", HEAD * (2 if ratio == 4 else 1), ratio)
    if ratio == 4:
        tensors += fp8(attention + "indexer.wq_b", INDEX_HEADS * INDEX_HEAD, Q_RANK)
        tensors.append((attention + "indexer.weights_proj.weight", "BF16", [INDEX_HEADS, HIDDEN]))
        tensors += compressor(attention + "indexer.compressor", 2 * INDEX_HEAD, ratio)
    tensors += [(ffn + "gate.weight", "BF16", [experts, HIDDEN]), (ffn + "gate.bias", "F32", [experts])]
    for name, rows, cols in (("w1", INNER, HIDDEN), ("w2", HIDDEN, INNER), ("w3", INNER, HIDDEN)):
        tensors += fp8(ffn + "shared_experts." + name, rows, cols)
        for expert in range(experts):
            tensors.append((f"{ffn}experts.{expert}.{name}.weight", "I8", [rows, cols // 2]))
            tensors.append((f"{ffn}experts.{expert}.{name}.scale", "F8_E8M0", [rows, cols // 32]))
    return tensors


def config(layers, experts):
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN, "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": 1,
        "head_dim": HEAD, "qk_rope_head_dim": 64, "q_lora_rank": Q_RANK, "o_groups": O_GROUPS, "o_lora_rank": O_RANK,
        "sliding_window": 128, "max_position_embeddings": 1048576, "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_HEAD, "index_topk": 512, "n_routed_experts": experts, "num_experts_per_tok": 6,
        "n_shared_experts": 1, "moe_intermediate_size": INNER, "num_hash_layers": 0, "norm_topk_prob": True,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
        "hc_mult": HC, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "num_nextn_predict_layers": 0,
        "compress_ratios": [RATIOS[layer % len(RATIOS)] for layer in range(layers)], "rope_theta": 10000,
        "compress_rope_theta": 160000, "expert_dtype": "fp4",
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                         "beta_slow": 1},
        "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                                "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    }


class Values:
    """Random bytes that are sound values of each dtype, drawn from one pool at changing offsets."""

    POOL = 32 << 20

    def __init__(self, seed):
        self.random = random.Random(seed)
        raw = self.random.randbytes(self.POOL)
        # Expert and block scales of 2^-11 to 2^-4: every conversion of such weights is exact.
        self.pools = {"I8": raw, "F8_E8M0": raw.translate(bytes(116 + byte % 8 for byte in range(256)))}
        # No NaN codes.
        self.pools["F8_E4M3"] = raw.translate(bytes(byte & 0xBF for byte in range(256)))
        high = raw.translate(bytes(0x3C | byte & 0x80 for byte in range(256)))  # magnitudes of 0.0078 to 0.031
        for dtype, width in (("BF16", 2), ("F32", 4)):
            pool = bytearray(raw)
            pool[width - 1 :: width] = high[width - 1 :: width]
            self.pools[dtype] = bytes(pool)

    def pieces(self, dtype, count):
        pool = memoryview(self.pools[dtype])
        while count > 0:
            begin = self.random.randrange(0, self.POOL // 2, 8)
            piece = pool[begin : begin + count]
            count -= len(piece)
            yield piece


def size_of(dtype, shape):
    count = BYTES[dtype]
    for extent in shape:
        count *= extent
    return count


def write_shard(path, tensors, values):
    tensors = sorted(tensors, key=lambda tensor: (RANK[tensor[1]], tensor[0]))
    header, offset = {}, 0
    for name, dtype, shape in tensors:
        end = offset + size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, shape in tensors:
            for piece in values.pieces(dtype, size_of(dtype, shape)):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return {name: os.path.basename(path) for name in header}, offset


def write_checkpoint(folder, experts, layers=3, seed=1):
    """Writes the checkpoint; returns its data bytes."""
    os.makedirs(folder)
    values = Values(seed)
    shards = [[("embed.weight", "BF16", [VOCABULARY, HIDDEN])]]
    shards += [layer_tensors(layer, RATIOS[layer % len(RATIOS)], experts) for layer in range(layers)]
    shards.append([
        ("head.weight", "BF16", [VOCABULARY, HIDDEN]), ("norm.weight", "BF16", [HIDDEN]),
        ("hc_head_fn", "F32", [HC, HC * HIDDEN]), ("hc_head_base", "F32", [HC]), ("hc_head_scale", "F32", [1]),
    ])
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        names, size = write_shard(os.path.join(folder, name), tensors, values)
        weight_map.update(names)
        total += size
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1, sort_keys=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config(layers, experts), file, indent=1)
    return total
