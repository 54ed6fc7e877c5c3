// Writes tiny random checkpoints of the DeepSeek-V4 architecture ("T0" of docs/public-faults.md section 0):
// the real head sizes, everything else small. All formats and naming styles hold exactly the same weight
// values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pivot::test {

enum class TinyFormat {
  kNative,           // experts FP4 + E8M0, dense FP8 + E8M0
  kNvfp4,            // experts NVFP4 (ModelOpt, lossless), MTP/DSpark experts stay FP4
  kNvfp4Compressed,  // the same with compressed-tensors names and reciprocal global scales
  kFp8E8m0,          // experts FP8 + E8M0
  kFp8F32,           // experts and dense FP8 + F32 scales
  kBf16,             // everything BF16
};
enum class TinyNames {
  kNative,
  kTransformers
};  // kTransformers: experts fused; with kFp8E8m0, kFp8F32 or kBf16 only
enum class TinyHead { kNone, kMtp, kDspark };

struct TinyOptions {
  std::vector<int> compress_ratios = {0, 0, 4, 128, 4, 128};  // one per layer; draft entries are added
  int vocab_size = 512;
  int hidden_size = 256;
  int num_attention_heads = 4;
  int head_dim = 512;
  int qk_rope_head_dim = 64;
  int q_lora_rank = 128;
  int o_groups = 2;
  int o_lora_rank = 128;
  int sliding_window = 128;
  int index_n_heads = 4;
  int index_head_dim = 128;
  int index_topk = 16;
  int n_routed_experts = 8;
  int num_experts_per_tok = 2;
  int moe_intermediate_size = 128;
  int num_hash_layers = 1;
  int max_position_embeddings = 65536;
  int original_max_position_embeddings = 4096;  // YaRN factor 16
  double swiglu_limit = 10.0;
  std::uint64_t seed = 1;
  TinyFormat format = TinyFormat::kNative;
  TinyNames names = TinyNames::kNative;
  TinyHead head = TinyHead::kNone;  // kDspark: 3 stages tapping the last layers
  bool mtp_copies = false;          // with kMtp: duplicate embedding and head under mtp.0, which loaders skip
  int num_shards = 2;               // 1 writes a single model.safetensors without an index
};

// Creates `folder` and writes config.json, the shards and the index into it. Aborts the test binary on I/O
// errors.
void write_tiny_checkpoint(const std::filesystem::path& folder, const TinyOptions& options = {});
// The config.json text alone.
std::string tiny_config_json(const TinyOptions& options = {});

}  // namespace pivot::test
