// Row-wise and element-wise steps on 8 lanes: norms, rotation, Hadamard, hyper-connections, SwiGLU,
// compressor pooling, cached rows. Included once per instruction set, after its vec_*.h.
//
// Where the oracle's steps are plain products and sums of a few terms these keep its order and its unfused
// roundings, so that the results are the same bits; exp differs from the C library's by at most an ulp or
// two.
#pragma once

#include "ops/cpu/simd/inputs_body.h"
#include "ops/cpu/simd/kernels.h"

namespace {

using pivot::RowFormat;
using pivot::RowLayout;

PIVOT_INLINE Vec maybe_round(Vec v, bool round) { return round ? round_to_bf16(v) : v; }

// Loads count < 8 floats, the rest `fill`.
PIVOT_INLINE Vec load_partial(const float* p, std::int64_t count, float fill) {
  float lanes[8];
  for (int i = 0; i < 8; ++i) lanes[i] = i < count ? p[i] : fill;
  return load(lanes);
}
PIVOT_INLINE void store_partial(float* p, std::int64_t count, Vec v) {
  float lanes[8];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<std::size_t>(count) * sizeof(float));
}

// e^x within 1.5 ulp; 0 below -87.3 (where the C library would return subnormals), +inf above 88.7, NaN for
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that n * high is exact; degree-7 polynomial
// for e^r.
PIVOT_INLINE Vec exponential(Vec x) {
  const Vec low = splat(-87.33654f), high = splat(88.72283f);
  const Vec clamped = min_or_second(max_or_second(x, low), high);
  const Bits n = to_int(clamped * splat(1.44269504f));
  const Vec nf = to_float(n);
  Vec r = fma(nf, splat(-0.693145752f), clamped);
  r = fma(nf, splat(-1.42860677e-6f), r);
  Vec p = splat(1.9841270e-4f);
  p = fma(p, r, splat(1.3888889e-3f));
  p = fma(p, r, splat(8.3333333e-3f));
  p = fma(p, r, splat(4.1666667e-2f));
  p = fma(p, r, splat(1.6666667e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p * r, r, r) + splat(1.0f);
  // 2^n in two factors: n may be 128, and -126 must not pass through a subnormal.
  const Bits half = sub_bits(shift_right<1>(add_bits(n, splat_bits(256))), splat_bits(128));  // floor(n/2)
  const Bits rest = sub_bits(n, half);
  const Vec a = from_bits(shift_left<23>(add_bits(half, splat_bits(127))));
  const Vec b = from_bits(shift_left<23>(add_bits(rest, splat_bits(127))));
  Vec result = p * a * b;
  result = select(less(x, low), zero(), result);
  result = select(less(high, x), splat(__builtin_inff()), result);
  return select(is_nan(x), x, result);
}

static float sum_squares(const float* x, std::int64_t count, bool round) {
  Vec acc[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    for (int k = 0; k < 4; ++k) {
      const Vec v = load(x + i + 8 * k);
      acc[k] = acc[k] + maybe_round(v * v, round);
    }
  for (; i < count; i += 8) {
    const Vec v = i + 8 <= count ? load(x + i) : load_partial(x + i, count - i, 0.0f);
    acc[0] = acc[0] + maybe_round(v * v, round);
  }
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

static void scale_row(const float* x, float factor, const float* weight, std::int64_t count, bool round,
                      float* y) {
  const Vec f = splat(factor);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    Vec v = load(x + i) * f;
    if (weight != nullptr) v = v * load(weight + i);
    store(y + i, maybe_round(v, round));
  }
  if (i < count) {
    Vec v = load_partial(x + i, count - i, 0.0f) * f;
    if (weight != nullptr) v = v * load_partial(weight + i, count - i, 0.0f);
    store_partial(y + i, count - i, maybe_round(v, round));
  }
}

static void divide_row(float* x, float divisor, std::int64_t count, bool round) {
  const Vec d = splat(divisor);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(x + i, maybe_round(load(x + i) / d, round));
  if (i < count)
    store_partial(x + i, count - i, maybe_round(load_partial(x + i, count - i, 0.0f) / d, round));
}

static void round_bf16(float* x, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(x + i, round_to_bf16(load(x + i)));
  if (i < count) store_partial(x + i, count - i, round_to_bf16(load_partial(x + i, count - i, 0.0f)));
}

static void rotate(float* x, const float* cos, const float* sin, std::int64_t pairs, bool round) {
  const Vec signs = Vec{-1.0f, 1.0f, -1.0f, 1.0f, -1.0f, 1.0f, -1.0f, 1.0f};
  std::int64_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    const Vec v = load(x + 2 * i);
    const Vec c = load_doubled(cos + i);
    const Vec s = load_doubled(sin + i) * signs;
    store(x + 2 * i, maybe_round(v * c + swap_pairs(v) * s, round));
  }
  for (; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    const float first = a * cos[i] - b * sin[i], second = a * sin[i] + b * cos[i];
    x[2 * i] = round ? round_to_bf16(first) : first;
    x[2 * i + 1] = round ? round_to_bf16(second) : second;
  }
}

static void hadamard(float* x, std::int64_t size) {
  // Halves 1, 2 and 4 lie inside a vector.
  for (std::int64_t base = 0; base < size; base += 8) {
    float* p = x + base;
    for (int half = 1; half < 8; half *= 2) {
      float next[8];
      for (int i = 0; i < 8; ++i) next[i] = (i & half) == 0 ? p[i] + p[i + half] : p[i - half] - p[i];
      std::memcpy(p, next, sizeof(next));
    }
  }
  for (std::int64_t half = 8; half < size; half *= 2)
    for (std::int64_t base = 0; base < size; base += 2 * half)
      for (std::int64_t i = base; i < base + half; i += 8) {
        const Vec a = load(x + i), b = load(x + i + half);
        store(x + i, a + b);
        store(x + i + half, a - b);
      }
  const Vec scale = splat(static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(size))));
  for (std::int64_t i = 0; i < size; i += 8) store(x + i, load(x + i) * scale);
}

// ---- hyper-connections ----

static void hc_post(float* h, const float* o, const float* post, const float* comb, int streams,
                    std::int64_t width, std::int64_t begin, std::int64_t end, bool round) {
  const auto column = [&](std::int64_t i, std::int64_t count) {
    const bool whole = count == 8;
    Vec in[4], out[4];
    for (int j = 0; j < streams; ++j)
      in[j] = whole ? load(h + j * width + i) : load_partial(h + j * width + i, count, 0);
    const Vec v = whole ? load(o + i) : load_partial(o + i, count, 0.0f);
    for (int k = 0; k < streams; ++k) {
      Vec mixed = zero();
      for (int j = 0; j < streams; ++j) mixed = mixed + splat(comb[j * streams + k]) * in[j];
      out[k] = maybe_round(splat(post[k]) * v + mixed, round);
    }
    for (int k = 0; k < streams; ++k)
      whole ? store(h + k * width + i, out[k]) : store_partial(h + k * width + i, count, out[k]);
  };
  std::int64_t i = begin;
  for (; i + 8 <= end; i += 8) column(i, 8);
  if (i < end) column(i, end - i);
}

static void hc_pre(const float* h, const float* pre, int streams, std::int64_t width, bool round, float* y) {
  std::int64_t i = 0;
  for (; i < width; i += 8) {
    const std::int64_t count = smaller(8, width - i);
    Vec total = zero();
    for (int j = 0; j < streams; ++j) {
      const float* p = h + j * width + i;
      total = total + splat(pre[j]) * (count == 8 ? load(p) : load_partial(p, count, 0.0f));
    }
    total = maybe_round(total, round);
    count == 8 ? store(y + i, total) : store_partial(y + i, count, total);
  }
}

PIVOT_INLINE Vec sigmoid(Vec x) { return splat(1.0f) / (splat(1.0f) + exponential(zero() - x)); }

// Lane = token: the 4x4 matrices of eight tokens side by side, every sum in the oracle's order.
static void hc_coefficients(const float* mixes, std::int64_t num_tokens, const float* scale,
                            const float* base, int streams, int iterations, float eps, float* pre,
                            float* post, float* comb) {
  const int rows = (2 + streams) * streams;
  const Vec epsilon = splat(eps);
  const auto mixed = [&](int row, float factor) {
    float lanes[8];
    for (int t = 0; t < 8; ++t) lanes[t] = mixes[(t < num_tokens ? t : 0) * rows + row];
    return load(lanes) * splat(factor) + splat(base[row]);
  };
  const auto write = [&](Vec v, float* out, int stride, int at) {
    float lanes[8];
    store(lanes, v);
    for (std::int64_t t = 0; t < num_tokens; ++t) out[t * stride + at] = lanes[t];
  };
  for (int j = 0; j < streams; ++j) {
    write(sigmoid(mixed(j, scale[0])) + epsilon, pre, streams, j);
    write(splat(2.0f) * sigmoid(mixed(streams + j, scale[1])), post, streams, j);
  }
  Vec c[4][4];
  for (int j = 0; j < streams; ++j) {
    for (int k = 0; k < streams; ++k) c[j][k] = mixed(2 * streams + j * streams + k, scale[2]);
    Vec maximum = c[j][0];
    for (int k = 1; k < streams; ++k) maximum = select(less(maximum, c[j][k]), c[j][k], maximum);
    Vec total = zero();
    for (int k = 0; k < streams; ++k) {
      c[j][k] = exponential(c[j][k] - maximum);
      total = total + c[j][k];
    }
    for (int k = 0; k < streams; ++k) c[j][k] = c[j][k] / total + epsilon;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0)
      for (int j = 0; j < streams; ++j) {
        Vec total = zero();
        for (int k = 0; k < streams; ++k) total = total + c[j][k];
        total = total + epsilon;
        for (int k = 0; k < streams; ++k) c[j][k] = c[j][k] / total;
      }
    for (int k = 0; k < streams; ++k) {
      Vec total = zero();
      for (int j = 0; j < streams; ++j) total = total + c[j][k];
      total = total + epsilon;
      for (int j = 0; j < streams; ++j) c[j][k] = c[j][k] / total;
    }
  }
  for (int j = 0; j < streams; ++j)
    for (int k = 0; k < streams; ++k) write(c[j][k], comb, streams * streams, j * streams + k);
}

// ---- experts ----

static void swiglu(float* g, const float* u, std::int64_t count, float limit, float weight, bool round) {
  const Vec top = splat(limit), bottom = splat(-limit), one = splat(1.0f), factor = splat(weight);
  for (std::int64_t i = 0; i < count; i += 8) {
    const std::int64_t lanes = smaller(8, count - i);
    Vec gate = lanes == 8 ? load(g + i) : load_partial(g + i, lanes, 0.0f);
    Vec up = lanes == 8 ? load(u + i) : load_partial(u + i, lanes, 0.0f);
    if (limit > 0.0f) {
      gate = select(less(top, gate), top, gate);
      up = select(less(up, bottom), bottom, select(less(top, up), top, up));
    }
    const Vec v = maybe_round(gate / (one + exponential(zero() - gate)) * up * factor, round);
    lanes == 8 ? store(g + i, v) : store_partial(g + i, lanes, v);
  }
}

static void accumulate(float* total, const float* x, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(total + i, load(total + i) + load(x + i));
  for (; i < count; ++i) total[i] += x[i];
}

// ---- compressor ----

static void softmax_pool(const float* const* k, const float* const* s, std::int64_t count, std::int64_t width,
                         float* out) {
  for (std::int64_t c = 0; c < width; c += 8) {
    const std::int64_t lanes = smaller(8, width - c);
    const auto at = [&](const float* p) {
      return lanes == 8 ? load(p + c) : load_partial(p + c, lanes, 0.0f);
    };
    Vec maximum = at(s[0]);
    for (std::int64_t i = 1; i < count; ++i) {
      const Vec v = at(s[i]);
      maximum = select(less(maximum, v), v, maximum);
    }
    // The oracle divides every weight by the sum before the product, hence two passes over the exponentials.
    Vec total = zero();
    for (std::int64_t i = 0; i < count; ++i) total = total + exponential(at(s[i]) - maximum);
    Vec value = zero();
    for (std::int64_t i = 0; i < count; ++i)
      value = value + exponential(at(s[i]) - maximum) / total * at(k[i]);
    lanes == 8 ? store(out + c, value) : store_partial(out + c, lanes, value);
  }
}

// ---- cached rows ----

// Eight E4M3 codes in column order, NaN included.
PIVOT_INLINE Vec e4m3_values(const std::byte* p, float scale) {
  const Bits codes = widen_bytes(p);
  const Bits magnitude = bit_and(codes, splat_bits(0x7f));
  const Bits sign = shift_left<24>(bit_and(codes, splat_bits(0x80)));
  const Vec value = from_bits(bit_or(shift_left<20>(magnitude), sign)) * splat(0x1p+120f) * splat(scale);
  const Vec nan = from_bits(equal_bits(magnitude, splat_bits(0x7f)));
  return select(nan, splat(__builtin_nanf("")), value);
}

// `count` E4M3 codes under one scale per 64, all of them as rows of a cache have them: whole groups, no NaN,
// scales that leave room for the factor 2^120. False where they are not, and x holds nothing.
static bool unpack_plain_e4m3(const std::byte* data, const std::byte* scales, std::int64_t count, float* x) {
  if (count % 64 != 0) return false;
  CodeCheck check;
  for (std::int64_t i = 0; i < count; i += 32) note_e4m3(data + i, check);
  if (saw_nan(check)) return false;
  for (std::int64_t i = 0; i < count; i += 64) {
    const std::byte code = scales[i / 64];
    if (static_cast<unsigned>(code) - 1u > 127u + 6u) return false;
    const Vec factor = splat(e8m0_value(code) * 0x1p+120f);
    for (std::int64_t c = i; c < i + 64; c += 8) store(x + c, widen_e4m3(data + c) * factor);
  }
  return true;
}

static void unpack_row(const RowLayout& layout, const std::byte* data, const std::byte* scales, float* x) {
  const auto widen = [&](const std::byte* p, std::int64_t count, float* out) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) store(out + i, widen_bf16(p + 2 * i));
    for (; i < count; ++i) {
      std::uint16_t half;
      std::memcpy(&half, p + 2 * i, 2);
      const std::uint32_t u = static_cast<std::uint32_t>(half) << 16;
      std::memcpy(out + i, &u, 4);
    }
  };
  switch (layout.format) {
    case RowFormat::kKvPacked: {
      const std::int64_t nope = layout.width - layout.rope;
      std::int64_t i = unpack_plain_e4m3(data, scales, nope, x) ? nope : 0;
      for (; i + 8 <= nope; i += 8) store(x + i, e4m3_values(data + i, e8m0_value(scales[i / 64])));
      if (i < nope) {
        std::byte tail[8] = {};
        std::memcpy(tail, data + i, static_cast<std::size_t>(nope - i));
        store_partial(x + i, nope - i, e4m3_values(tail, e8m0_value(scales[i / 64])));
      }
      return widen(data + nope, layout.rope, x + nope);
    }
    case RowFormat::kBf16:
      return widen(data, layout.width, x);
    case RowFormat::kF32:
      std::memcpy(x, data, static_cast<std::size_t>(layout.width) * 4);
      return;
    case RowFormat::kIndexFp4:
      for (std::int64_t i = 0; i < layout.width; i += 2) {
        const float scale = e8m0_value(scales[i / 32]);
        const auto pair = static_cast<unsigned>(data[i / 2]);
        x[i] = kE2m1Table[pair & 15u] * scale;
        x[i + 1] = kE2m1Table[pair >> 4] * scale;
      }
      return;
    case RowFormat::kIndexFp8: {
      float scale;
      std::memcpy(&scale, scales, 4);
      for (std::int64_t i = 0; i < layout.width; i += 8) {
        const std::int64_t lanes = smaller(8, layout.width - i);
        std::byte codes[8] = {};
        std::memcpy(codes, data + i, static_cast<std::size_t>(lanes));
        store_partial(x + i, lanes, e4m3_values(codes, scale));
      }
      return;
    }
  }
}

}  // namespace
