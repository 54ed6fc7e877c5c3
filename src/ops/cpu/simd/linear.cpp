#include "ops/cpu/simd/linear.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "numeric/quantize.h"

namespace pivot::simd {
namespace {

constexpr std::int64_t kActivationGroup = 128;  // specification 3.3
constexpr std::int64_t kTokenBlock = 192;       // tokens of one unit of work: two token tiles of the kernel

// Multiply-adds that are not worth waking another thread for (about 10 us of one core).
constexpr std::int64_t kSmallWork = 100'000;

struct Units {
  std::int64_t row_size = 0, row_blocks = 0, token_blocks = 0, unit_cost = 0;
  std::int64_t count() const { return row_blocks * token_blocks; }
};

Units units_of(const LinearJob& job) {
  Units units;
  const std::int64_t rows = job.row_end - job.row_begin;
  units.row_size = job.tokens == 1 ? 8 : 16;  // what the kernels take at a time
  units.row_blocks = (rows + units.row_size - 1) / units.row_size;
  units.token_blocks = (job.tokens + kTokenBlock - 1) / kTokenBlock;
  units.unit_cost = units.row_size * job.w->cols * std::min(job.tokens, kTokenBlock);
  return units;
}

void run_units(const Kernels& kernels, const LinearJob& job, const Units& units, std::int64_t begin,
               std::int64_t end) {
  while (begin < end) {
    const std::int64_t token_block = begin / units.row_blocks;
    const std::int64_t first = begin % units.row_blocks;
    const std::int64_t last = std::min(units.row_blocks, first + end - begin);
    const std::int64_t token = token_block * kTokenBlock;
    const std::int64_t row_begin = job.row_begin + first * units.row_size;
    const std::int64_t row_end = std::min(job.row_end, job.row_begin + last * units.row_size);
    kernels.linear(*job.w, job.order, row_begin, row_end, job.x + token,
                   std::min(kTokenBlock, job.tokens - token),
                   job.out + token * job.out_stride + (row_begin - job.row_begin), job.out_stride, job.round);
    begin += last - first;
  }
}

}  // namespace

InputKind input_kind(const Matrix& w, ActQuant act) {
  const bool quantized = w.format != MatrixFormat::kBF16 && w.format != MatrixFormat::kF32;
  InputKind kind{column_order(w.format), quantized ? act : ActQuant::kBf16, 0.0f};
  if (kind.order == ColumnOrder::kNibbles && act == ActQuant::kFp8) kind.order = ColumnOrder::kDigits;
  if (kind.quant == ActQuant::kNvfp4) kind.input_scale = w.input_scale;
  return kind;
}

void prepare_row(const Kernels& kernels, const InputKind& kind, const float* x, std::int64_t cols,
                 float* temporary, float* out) {
  if (kind.quant == ActQuant::kBf16) {
    kernels.permute(x, cols, kind.order, out);
    return;
  }
  if (kind.order == ColumnOrder::kDigits) {
    kernels.quantize_digits(x, cols, reinterpret_cast<Digits*>(out));
    return;
  }
  std::memcpy(temporary, x, static_cast<std::size_t>(cols) * sizeof(float));
  if (kind.quant == ActQuant::kFp8)
    kernels.quantize_e4m3(temporary, cols, kActivationGroup, nullptr);
  else
    quantize_dequantize_nvfp4({temporary, static_cast<std::size_t>(cols)}, kind.input_scale);
  kernels.permute(temporary, cols, kind.order, out);
}

std::vector<PreparedInput> prepare_inputs(Context& context, const float* x, std::int64_t tokens,
                                          std::int64_t cols, std::int64_t stride,
                                          std::span<const InputKind> kinds) {
  const std::int64_t padded = padded_columns(cols);
  std::vector<PreparedInput> prepared;
  std::vector<float*> bases;
  for (const InputKind& kind : kinds) {
    // Plain rows that need neither quantisation nor padding are used where they lie.
    const bool in_place =
        kind.order == ColumnOrder::kPlain && kind.quant == ActQuant::kBf16 && padded == cols;
    auto** rows = context.scratch.take<const float*>(tokens);
    float* base = in_place ? nullptr : context.scratch.take<float>(tokens * padded);
    for (std::int64_t t = 0; t < tokens; ++t) rows[t] = in_place ? x + t * stride : base + t * padded;
    prepared.push_back({kind, rows});
    bases.push_back(base);
  }
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> temporary(static_cast<std::size_t>(cols));
    for (std::size_t i = 0; i < kinds.size(); ++i)
      for (std::int64_t t = begin; bases[i] != nullptr && t < end; ++t)
        prepare_row(context.kernels, kinds[i], x + t * stride, cols, temporary.data(), bases[i] + t * padded);
  };
  if (tokens * cols < kSmallWork / 4)
    work(0, tokens);
  else
    context.pool.for_ranges(tokens, 1, work);
  return prepared;
}

void run_linear(Context& context, std::span<const LinearJob> jobs) {
  std::vector<Units> units;
  std::int64_t total = 0;
  for (const LinearJob& job : jobs) {
    units.push_back(units_of(job));
    total += units.back().count() * units.back().unit_cost;
  }
  const auto work = [&](int piece, int num_pieces) {
    const std::int64_t low = total / num_pieces * piece;
    const std::int64_t high = piece + 1 == num_pieces ? total : total / num_pieces * (piece + 1);
    std::int64_t start = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const Units& u = units[i];
      // The unit a bound falls into belongs to the piece before it.
      const auto unit_at = [&](std::int64_t cost) {
        return std::clamp<std::int64_t>((cost - start + u.unit_cost - 1) / u.unit_cost, 0, u.count());
      };
      if (u.count() > 0)
        run_units(context.kernels, jobs[i], u, low <= start ? 0 : unit_at(low), unit_at(high));
      start += u.count() * u.unit_cost;
      if (start >= high) break;
    }
  };
  if (total < kSmallWork)
    work(0, 1);
  else
    context.pool.run(work);
}

void LinearStep::add(const Matrix& w, ActQuant act, float* out, bool round) {
  PIVOT_CHECK(w.cols == cols_, "{} columns for {} inputs", w.cols, cols_);
  const InputKind kind = input_kind(w, act);
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  kind_of_.push_back(static_cast<std::size_t>(found - kinds_.begin()));
  if (found == kinds_.end()) kinds_.push_back(kind);
  jobs_.push_back({&w, kind.order, 0, w.rows, nullptr, tokens_, out, w.rows, round});
}

void LinearStep::run() {
  const std::vector<PreparedInput> inputs = prepare_inputs(context_, x_, tokens_, cols_, stride_, kinds_);
  for (std::size_t i = 0; i < jobs_.size(); ++i) jobs_[i].x = inputs[kind_of_[i]].rows;
  run_linear(context_, jobs_);
}

}  // namespace pivot::simd
