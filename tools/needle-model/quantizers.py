"""The number formats of the checkpoint and of its arithmetic, simulated: every function returns floats on the format's grid.

Scales are powers of two (E8M0) as in the native format, except for NVFP4.  `ste` makes any of them differentiable by the
straight-through rule (the gradient passes as if there were no rounding).
"""

import torch

HAS8 = hasattr(torch, "float8_e4m3fn")


def _grid(x, mant, emin):
    """Round to a small float grid (round half to even), no saturation."""
    _, e = torch.frexp(x)
    step = torch.ldexp(torch.ones_like(x), (e - 1).clamp_min(emin) - mant)
    return torch.round(x / step) * step


def e4m3(x):
    x = x.clamp(-448, 448)
    return x.to(torch.float8_e4m3fn).to(torch.float32) if HAS8 else _grid(x, 3, -6)


def e2m1(x):
    return _grid(x.clamp(-6, 6), 1, 0)


def pow2ceil(x):
    m, e = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), e - (m == 0.5).to(e.dtype))


def q8_act(x, block=128):
    b = x.float().unflatten(-1, (-1, block))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448.0))
    return (e4m3(b / s) * s).flatten(-2).to(x.dtype)


def q4_act(x, block=32):
    b = x.float().unflatten(-1, (-1, block))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126) * (1 / 6.0))
    return (e2m1(b / s) * s).flatten(-2).to(x.dtype)


def nvfp4(x, block=16, amax=None):
    """NVFP4: e2m1 values, e4m3 scale per 16 along the last axis, one float32 scale per tensor."""
    b = x.float().unflatten(-1, (-1, block))
    g = (b.abs().amax() if amax is None else amax).clamp_min(1e-12) / (6 * 448.0)
    s = e4m3(b.abs().amax(-1, keepdim=True) / 6.0 / g).clamp_min(2.0**-9) * g
    return (e2m1(b / s) * s).flatten(-2).to(x.dtype)


def w8_parts(w):
    """FP8 weight, 128x128 blocks, power-of-two scales -> (values / scale, scale)."""
    n, k = w.shape
    b = w.float().reshape(n // 128, 128, k // 128, 128)
    s = pow2ceil(b.abs().amax((1, 3), keepdim=True).clamp_min(1e-8) * (1 / 448.0))
    return e4m3(b / s), s


def w8(w):
    q, s = w8_parts(w)
    return (q * s).reshape(w.shape)


def w4_parts(w):
    """FP4 weight, 1x32 blocks, power-of-two scales -> (values / scale, scale)."""
    b = w.float().unflatten(-1, (-1, 32))
    s = pow2ceil(b.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-100) * (1 / 6.0))
    return e2m1(b / s), s


def w4(w):
    q, s = w4_parts(w)
    return (q * s).flatten(-2)


class exact_fp32:
    """Full float32 products where an operand is not exactly a bf16 number (everywhere else TF32 is exact on bf16 inputs)."""

    def __init__(self, on):
        self.on = on and torch.cuda.is_available()

    def __enter__(self):
        if self.on:
            self.old = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = False

    def __exit__(self, *a):
        if self.on:
            torch.backends.cuda.matmul.allow_tf32 = self.old


class _STE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fn, *a):
        ctx.n = len(a)
        return fn(x, *a)

    @staticmethod
    def backward(ctx, g):
        return (g, None) + (None,) * ctx.n


def ste(x, fn, *a):
    return _STE.apply(x, fn, *a)
