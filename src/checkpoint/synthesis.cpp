#include "checkpoint/synthesis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/threads.h"

namespace pivot {
namespace {

constexpr std::int64_t kAlignment = 64;   // bytes, of every part
constexpr std::int64_t kPiece = 1 << 20;  // bytes filled as one unit of work

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::uint64_t mix(std::uint64_t i, std::uint64_t seed) {  // splitmix64
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

enum class Fill : std::uint8_t { kBits, kE4M3, kBF16, kF32, kE8M0, kE4M3Scale, kIds };

// One part of the arena and what goes into it.
struct Job {
  Fill fill = Fill::kBits;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
  std::uint64_t seed = 0;
  int exponent = 0;                 // kE8M0: the middle one; kBF16: of the largest values
  float mean = 0, spread = 0;       // kF32
  std::int32_t ids = 0, below = 0;  // kIds: ids of a row, and what they stay below
};

constexpr std::uint64_t in_every(std::uint64_t byte) { return byte * 0x0101010101010101u; }

std::uint64_t no_nan(std::uint64_t eight) {  // E4M3: magnitude 0x7f is NaN; 0x3f takes its place
  const std::uint64_t is_nan = ((eight & in_every(0x7f)) + in_every(1)) & in_every(0x80);
  return eight ^ (is_nan >> 1);
}

std::uint64_t word(const Job& job, std::uint64_t index) {
  const std::uint64_t bits = mix(index, job.seed);
  switch (job.fill) {
    case Fill::kBits:
      return bits;
    case Fill::kE4M3:
      return no_nan(bits);
    case Fill::kBF16: {
      // Sign and mantissa of each are random, the exponent is the even one or the one above it.
      const auto exponent = static_cast<std::uint64_t>(127 + job.exponent) & ~std::uint64_t{1};
      return (bits & 0x80ff80ff80ff80ffu) | (exponent << 7) * 0x0001000100010001u;
    }
    case Fill::kF32: {
      const auto one = [&](std::uint32_t half) {
        const float u = static_cast<float>(static_cast<std::int32_t>(half)) * 0x1p-31f;
        return std::uint64_t{std::bit_cast<std::uint32_t>(job.mean + job.spread * u)};
      };
      return one(static_cast<std::uint32_t>(bits)) | one(static_cast<std::uint32_t>(bits >> 32)) << 32;
    }
    case Fill::kE8M0:  // the middle exponent or the one above it
      return in_every(static_cast<std::uint64_t>(127 + job.exponent)) + (bits & in_every(1));
    case Fill::kE4M3Scale:  // 32 to 120
      return in_every(0x60) | (bits & in_every(0x0f));
    case Fill::kIds:
      break;
  }
  return bits;
}

void fill_ids(const Job& job) {
  auto* out = reinterpret_cast<std::int32_t*>(job.to);
  const std::int64_t rows = job.bytes / (4 * job.ids);
  for (std::int64_t row = 0; row < rows; ++row, out += job.ids)
    for (std::int32_t i = 0; i < job.ids; ++i) {
      auto id = static_cast<std::int32_t>(mix(static_cast<std::uint64_t>(row * job.ids + i), job.seed) %
                                          static_cast<std::uint64_t>(job.below));
      while (std::find(out, out + i, id) != out + i) id = (id + 1) % job.below;
      out[i] = id;
    }
}

void fill_piece(const Job& job, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end; at += 8) {
    const std::uint64_t value = word(job, static_cast<std::uint64_t>(at / 8));
    std::memcpy(job.to + at, &value, static_cast<std::size_t>(std::min<std::int64_t>(8, end - at)));
  }
}

// Walks the weights, giving each part its place; without memory it only counts.
class Placer {
 public:
  Placer(const SynthesisOptions& options, std::byte* memory) : options_(options), memory_(memory) {}

  std::int64_t bytes() const { return used_; }
  const std::vector<Job>& jobs() const { return jobs_; }

  void place(ModelWeights& w) {
    place(w.head);
    if (options_.shared_embedding)
      w.embed.codes = w.head.codes;
    else
      place(w.embed);
    place(w.norm);
    place(w.hc_head.fn, 0.0f, 0.01f);
    place(w.hc_head.base, 0.0f, 0.5f);
    place(w.hc_head.scale);
    std::map<int, const LayerWeights*> first;
    for (std::size_t l = 0; l < w.layers.size(); ++l) {
      LayerWeights& layer = w.layers[l];
      const LayerWeights*& source = first[w.config.ratio(static_cast<std::int64_t>(l))];
      place(layer, source, w.config);
      if (source == nullptr) source = &layer;
    }
  }

 private:
  std::byte* take(Job job) {
    if (job.bytes == 0) return nullptr;
    job.to = memory_ == nullptr ? nullptr : memory_ + used_;
    job.seed = std::uint64_t{options_.seed} << 32 | ++count_;
    used_ += aligned(job.bytes);
    if (memory_ != nullptr) jobs_.push_back(job);
    return job.to;
  }

  void place(Matrix& m) {
    // Root mean squares of uniformly random codes: 107 for E4M3, 2.9 for E2M1; of the two exponents that
    // scales and BF16 values take the mean is half an exponent up.
    const auto exponent = [&](double rms) {
      return static_cast<int>(std::lround(-std::log2(rms * std::sqrt(static_cast<double>(m.cols))) - 0.5));
    };
    Job codes{.fill = Fill::kBits, .bytes = m.code_bytes()};
    Job scales{.fill = Fill::kE8M0, .bytes = m.scale_bytes()};
    switch (m.format) {
      case MatrixFormat::kBF16:
        codes.fill = Fill::kBF16;
        codes.exponent = exponent(1.5);
        break;
      case MatrixFormat::kF32:
        codes.fill = Fill::kF32;
        codes.spread = static_cast<float>(std::sqrt(3.0 / static_cast<double>(m.cols)));
        break;
      case MatrixFormat::kFP8:
        codes.fill = Fill::kE4M3;
        scales.exponent = exponent(107.0);
        break;
      case MatrixFormat::kFP4:
        scales.exponent = exponent(2.9);
        break;
      case MatrixFormat::kNVFP4:
        scales.fill = Fill::kE4M3Scale;
        m.global_scale = static_cast<float>(1.0 / (2.9 * 70.0 * std::sqrt(static_cast<double>(m.cols))));
        m.input_scale = 1.0f / (6.0f * 448.0f) * 8.0f;
        break;
    }
    m.codes = take(codes);
    m.scales = take(scales);
  }

  void place(FloatSpan& values, float mean = 1.0f, float spread = 0.0f) {
    Job job{.fill = Fill::kF32, .bytes = static_cast<std::int64_t>(values.size()) * 4};
    job.mean = mean;
    job.spread = spread;
    values = {reinterpret_cast<const float*>(take(job)), values.size()};
  }

  void place(HyperConnectionWeights& w) {
    place(w.fn, 0.0f, 0.01f);
    place(w.base, 0.0f, 0.5f);
    place(w.scale);
  }
  void place(CompressorWeights& w) {
    place(w.wkv);
    place(w.wgate);
    place(w.ape, 0.0f, 0.5f);
    place(w.norm);
  }
  void place(ExpertWeights& w) {
    place(w.w1);
    place(w.w3);
    place(w.w2);
  }

  bool owns(LayerPart part, const LayerWeights* source) const {
    return source == nullptr || (options_.own_parts & part) != 0;
  }

  void place(LayerWeights& layer, const LayerWeights* source, const ModelConfig& config) {
    place(layer.attn_norm);
    place(layer.ffn_norm);
    if (owns(kPartHyperConnection, source)) {
      place(layer.attn_hc);
      place(layer.ffn_hc);
    } else {
      layer.attn_hc = source->attn_hc;
      layer.ffn_hc = source->ffn_hc;
    }
    place_attention(layer.attn, source);
    MoeWeights& ffn = layer.ffn;
    owns(kPartRouter, source) ? place(ffn.gate) : void(ffn.gate = source->ffn.gate);
    place(ffn.bias, 0.0f, 0.05f);
    Job ids{.fill = Fill::kIds, .bytes = static_cast<std::int64_t>(ffn.tid2eid.size()) * 4};
    ids.ids = static_cast<std::int32_t>(config.num_experts_per_tok);
    ids.below = static_cast<std::int32_t>(ffn.experts.size());
    ffn.tid2eid = {reinterpret_cast<const std::int32_t*>(take(ids)), ffn.tid2eid.size()};
    if (owns(kPartExperts, source)) {
      const std::size_t resident = options_.resident_experts == 0
                                       ? ffn.experts.size()
                                       : static_cast<std::size_t>(options_.resident_experts);
      for (std::size_t e = 0; e < ffn.experts.size(); ++e)
        e < resident ? place(ffn.experts[e]) : void(ffn.experts[e] = ffn.experts[e % resident]);
      place(ffn.shared);
    } else {
      ffn.experts = source->ffn.experts;
      ffn.shared = source->ffn.shared;
    }
  }

  void place_attention(AttentionWeights& a, const LayerWeights* source) {
    place(a.q_norm);
    place(a.kv_norm);
    place(a.attn_sink, 0.0f, 1.0f);
    if (owns(kPartLatent, source)) {
      place(a.wq_a);
      place(a.wkv);
      if (a.compressor) place(*a.compressor);
      if (a.indexer) {
        place(a.indexer->weights_proj);
        place(a.indexer->compressor);
      }
    } else {
      a.wq_a = source->attn.wq_a;
      a.wkv = source->attn.wkv;
      a.compressor = source->attn.compressor;
      if (a.indexer) {
        a.indexer->weights_proj = source->attn.indexer->weights_proj;
        a.indexer->compressor = source->attn.indexer->compressor;
      }
    }
    if (owns(kPartQuery, source)) {
      place(a.wq_b);
      if (a.indexer) place(a.indexer->wq_b);
    } else {
      a.wq_b = source->attn.wq_b;
      if (a.indexer) a.indexer->wq_b = source->attn.indexer->wq_b;
    }
    if (owns(kPartOutput, source)) {
      place(a.wo_a);
      place(a.wo_b);
    } else {
      a.wo_a = source->attn.wo_a;
      a.wo_b = source->attn.wo_b;
    }
  }

  const SynthesisOptions& options_;
  std::byte* memory_;
  std::int64_t used_ = 0;
  std::uint64_t count_ = 0;
  std::vector<Job> jobs_;
};

void fill_all(const std::vector<Job>& jobs, int num_threads) {
  struct Piece {
    const Job* job;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (const Job& job : jobs) {
    if (job.fill == Fill::kIds) {
      fill_ids(job);
      continue;
    }
    for (std::int64_t at = 0; at < job.bytes; at += kPiece)
      pieces.push_back({&job, at, std::min(at + kPiece, job.bytes)});
  }
  ThreadPool pool(num_threads);
  pool.for_ranges(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      fill_piece(*piece.job, piece.begin, piece.end);
    }
  });
}

}  // namespace

std::int64_t synthesized_bytes(const ModelWeights& shapes, const SynthesisOptions& options) {
  ModelWeights copy = shapes;
  Placer placer(options, nullptr);
  placer.place(copy);
  return placer.bytes();
}

Result<std::shared_ptr<const ModelWeights>> synthesize_weights(ModelWeights shapes,
                                                               const SynthesisOptions& options,
                                                               int num_threads) {
  for (const LayerWeights& layer : shapes.layers)
    if (options.resident_experts < 0 ||
        options.resident_experts > static_cast<std::int64_t>(layer.ffn.experts.size()))
      return fail(ErrorCode::kInvalidArgument, "{} resident experts of {} a layer are not possible",
                  options.resident_experts, layer.ffn.experts.size());
  const std::int64_t bytes = synthesized_bytes(shapes, options);
  auto* memory = static_cast<std::byte*>(
      ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}, std::nothrow));
  if (memory == nullptr)
    return fail(ErrorCode::kOutOfMemory, "the synthetic weights need {} bytes; the system refused them",
                bytes);
  const std::shared_ptr<const void> storage(
      memory, [](std::byte* p) { ::operator delete (p, std::align_val_t{kAlignment}); });
  Placer placer(options, memory);
  placer.place(shapes);
  PIVOT_CHECK(placer.bytes() == bytes, "{} of {}", placer.bytes(), bytes);
  fill_all(placer.jobs(), num_threads);
  shapes.storage = storage;
  return std::make_shared<const ModelWeights>(std::move(shapes));
}

}  // namespace pivot
