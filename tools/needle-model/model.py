"""A small DeepSeek-V4-architecture model in plain PyTorch: batched full-sequence forward for training,
quantisation simulation, and an "exact" mode that follows the published reference arithmetic for evaluation.

Everything the real model has is here except MTP: hyper-connections with Sinkhorn, low-rank queries, one shared
KV head (K = V), 128-token window, gated KV compression 4:1 (overlapping) and 128:1, lightning indexer with
top-k selection, attention sinks, inverse RoPE on the output, grouped low-rank output projection, hash-routed and
score-routed experts.  Parameter names are the native checkpoint names (experts are stacked here, split on export).
Runs on torch >= 1.13 (CPU) and on CUDA.
"""

import math

import torch
import torch.nn.functional as F

from quantizers import exact_fp32, nvfp4, q4_act, q8_act, ste, w4, w8

CFG = dict(
    vocab_size=4096,
    hidden_size=256,
    num_hidden_layers=5,
    compress_ratios=[0, 4, 128, 4, 128],
    num_hash_layers=1,
    num_attention_heads=8,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=128,
    o_groups=2,
    o_lora_rank=128,
    sliding_window=128,
    index_n_heads=8,
    index_head_dim=128,
    index_topk=64,
    n_routed_experts=16,
    num_experts_per_tok=4,
    n_shared_experts=1,
    moe_intermediate_size=128,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rms_norm_eps=1e-6,
    rope_scaling=dict(
        type="yarn", factor=16, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1
    ),
)


def configure(changes):
    """Change CFG for every module that uses it; values are JSON (numbers)."""
    unknown = set(changes) - set(CFG)
    if unknown:
        raise SystemExit(f"there is no setting {sorted(unknown)}; the settings are {sorted(CFG)}")
    CFG.update(changes)


class Mode:
    """Which quantisers and selections are active."""

    def __init__(self, **kw):
        self.qat_w = False  # fake-quantise weights (FP8 128x128 dense, FP4 1x32 experts), straight-through
        self.act8 = False  # FP8 activations (1x128, ue8m0) in front of every quantised linear
        self.kv8 = False  # FP8 simulation of the non-RoPE KV dims (1x64, ue8m0)
        self.idx = "bf16"  # indexer q and keys: bf16 | fp8 | fp4 (Hadamard rotation first)
        self.topk = None  # None = attend to every visible compressed entry
        self.hp = False  # float32 where the reference uses it (evaluation)
        self.kl = False  # compute the indexer's KL loss
        self.train = False
        self.no128 = False  # ablation: hide the 128:1 entries
        self.no4 = False  # ablation: hide the 4:1 entries
        self.expert_act = "fp8"  # fp8 | nvfp4 | bf16: activations in front of routed experts when act8 is on
        self.hide128 = None  # 0-dim bool tensor: hide the 128:1 entries in this step (training)
        self.chunk = 0  # query chunk (evaluation of long inputs)
        self.__dict__.update(kw)


# ------------------------------------------------------------------ small pieces
class _Sinkhorn(torch.autograd.Function):
    """Alternating normalisation of [T,4,4]; backward rebuilds each step from the saved normalisers."""

    @staticmethod
    def forward(ctx, y, iters, eps):
        sums = []
        for n in range(2 * iters - 1):
            s = y.sum(-2 if n % 2 == 0 else -1, keepdim=True) + eps
            y = y / s
            sums.append(s)
        ctx.save_for_backward(y, *sums)
        return y

    @staticmethod
    def backward(ctx, g):
        y, *sums = ctx.saved_tensors
        for n in reversed(range(len(sums))):
            s = sums[n]
            g = (g - (g * y).sum(-2 if n % 2 == 0 else -1, keepdim=True)) / s
            y = y * s
        return g, None, None


def rms(x, w, eps):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), w.to(x.dtype), eps)
    xf = x.float()
    return (w * (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


def rms_hp(x, w, eps):
    xf = x.float()
    return (w * (xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


def rope_table(cfg, n, compressed, device):
    d, base = cfg["qk_rope_head_dim"], cfg["compress_rope_theta"] if compressed else cfg["rope_theta"]
    f = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    if compressed:  # YaRN only where KV is compressed
        y = cfg["rope_scaling"]
        corr = (
            lambda r: d
            * math.log(y["original_max_position_embeddings"] / (r * 2 * math.pi))
            / (2 * math.log(base))
        )
        lo, hi = max(math.floor(corr(y["beta_fast"])), 0), min(math.ceil(corr(y["beta_slow"])), d - 1)
        ramp = ((torch.arange(d // 2, dtype=torch.float32) - lo) / (max(hi - lo, 0.001))).clamp(0, 1)
        f = f / y["factor"] * ramp + f * (1 - ramp)
    t = torch.outer(torch.arange(n, dtype=torch.float32), f)
    return t.cos().to(device), t.sin().to(device)


def rope(x, cos, sin, inverse=False):
    """Rotate the last 64 dims of x (interleaved pairs); cos/sin broadcast over x's leading dims."""
    nope, r = x[..., :-64], x[..., -64:].float().unflatten(-1, (32, 2))
    a, b = r[..., 0], r[..., 1]
    if inverse:
        sin = -sin
    r = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    return torch.cat((nope, r), -1)


_H = {}


def hadamard(x):
    k = (x.shape[-1], x.device, x.dtype)
    if k not in _H:
        h = torch.ones(1, 1)
        while h.shape[0] < k[0]:
            h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
        _H[k] = (h * k[0] ** -0.5).to(x.device, x.dtype)
    return x @ _H[k]


class Model:
    def __init__(self, cfg=CFG, device="cpu", cd=torch.float32, seed=0):
        self.cfg, self.dev, self.cd = cfg, device, cd
        self.p, self.kind, self.buf = {}, {}, {}
        g = torch.Generator().manual_seed(seed)
        c, D = cfg, cfg["hidden_size"]

        def add(name, shape, std, kind="bf16", mean=0.0):
            self.p[name] = (torch.randn(shape, generator=g) * std + mean).to(device).requires_grad_(True)
            self.kind[name] = kind

        H, hd, ql = c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
        hc, E, I = c["hc_mult"], c["n_routed_experts"], c["moe_intermediate_size"]
        add("embed.weight", (c["vocab_size"], D), 0.3)
        add("head.weight", (c["vocab_size"], D), 0.0)
        with torch.no_grad():  # start from the embedding: copying is easy to learn
            self.p["head.weight"].copy_(self.p["embed.weight"] * 0.3)
        add("norm.weight", (D,), 0, "bf16", 1.0)

        def comp(pre, d, r):
            k = 2 if r == 4 else 1
            add(pre + "ape", (r, k * d), 1.0, "f32")
            add(pre + "wkv.weight", (k * d, D), D**-0.5)
            add(pre + "wgate.weight", (k * d, D), 0.5 * D**-0.5)
            add(pre + "norm.weight", (d,), 0, "bf16", 1.0)

        for i in range(c["num_hidden_layers"]):
            L = f"layers.{i}."
            A = L + "attn."
            r = c["compress_ratios"][i]
            add(L + "attn_norm.weight", (D,), 0, "bf16", 1.0)
            add(L + "ffn_norm.weight", (D,), 0, "bf16", 1.0)
            for n in ("attn", "ffn"):
                add(L + f"hc_{n}_fn", ((2 + hc) * hc, hc * D), 0.5 * (hc * D) ** -0.5, "f32")
                base = torch.cat((torch.full((hc,), -1.0986), torch.zeros(hc), (torch.eye(hc) * 4).flatten()))
                add(L + f"hc_{n}_base", ((2 + hc) * hc,), 0.3, "f32")
                with torch.no_grad():
                    self.p[L + f"hc_{n}_base"] += base.to(device)
                add(L + f"hc_{n}_scale", (3,), 0, "f32", 0.3)
            add(A + "attn_sink", (H,), 0, "f32")
            add(A + "wq_a.weight", (ql, D), D**-0.5, "fp8")
            add(A + "q_norm.weight", (ql,), 0, "bf16", 1.0)
            add(A + "wq_b.weight", (H * hd, ql), ql**-0.5, "fp8")
            add(A + "wkv.weight", (hd, D), D**-0.5, "fp8")
            add(A + "kv_norm.weight", (hd,), 0, "bf16", 1.0)
            gd = H * hd // c["o_groups"]
            add(A + "wo_a.weight", (c["o_groups"] * c["o_lora_rank"], gd), gd**-0.5, "fp8")
            add(
                A + "wo_b.weight",
                (D, c["o_groups"] * c["o_lora_rank"]),
                0.5 * (c["o_groups"] * c["o_lora_rank"]) ** -0.5,
                "fp8",
            )
            if r:
                comp(A + "compressor.", hd, r)
            if r == 4:
                ih, idd = c["index_n_heads"], c["index_head_dim"]
                add(A + "indexer.wq_b.weight", (ih * idd, ql), ql**-0.5, "fp8")
                add(A + "indexer.weights_proj.weight", (ih, D), D**-0.5)
                comp(A + "indexer.compressor.", idd, 4)
            add(L + "ffn.gate.weight", (E, D), D**-0.5)
            if i < c["num_hash_layers"]:
                t = torch.stack(
                    [
                        torch.randperm(E, generator=g)[: c["num_experts_per_tok"]]
                        for _ in range(c["vocab_size"])
                    ]
                )
                self.buf[L + "ffn.gate.tid2eid"] = t.to(device)
            else:
                self.buf[L + "ffn.gate.bias"] = torch.zeros(E, device=device)
            add(L + "ffn.experts.w1", (E, I, D), D**-0.5, "fp4")
            add(L + "ffn.experts.w3", (E, I, D), D**-0.5, "fp4")
            add(L + "ffn.experts.w2", (E, D, I), 0.3 * I**-0.5, "fp4")
            add(L + "ffn.shared_experts.w1.weight", (I, D), D**-0.5, "fp8")
            add(L + "ffn.shared_experts.w3.weight", (I, D), D**-0.5, "fp8")
            add(L + "ffn.shared_experts.w2.weight", (D, I), 0.3 * I**-0.5, "fp8")
        add("hc_head_fn", (hc, hc * D), 0.5 * (hc * D) ** -0.5, "f32")
        add("hc_head_base", (hc,), 0.1, "f32", -1.0986)
        add("hc_head_scale", (1,), 0, "f32", 0.3)
        self.rt = {}

    # -------------------------------------------------------------- helpers
    def tables(self, n):
        if n not in self.rt:
            self.rt[n] = (rope_table(self.cfg, n, False, self.dev), rope_table(self.cfg, n, True, self.dev))
        return self.rt[n]

    def w(self, name):
        w = self.p[name]
        if self.m.qat_w and self.kind[name] in ("fp8", "fp4"):
            w = ste(w, w8 if self.kind[name] == "fp8" else w4)
        return w.to(self.cd)

    def lin(self, x, name):
        if self.m.act8:
            x = ste(x, q8_act, 128)
        return F.linear(x, self.w(name))

    def hc_mix(self, x, pre):
        """Mixing coefficients of one hyper-connection: pre [T,4], post [T,4], comb [T,4,4] (float32)."""
        c = self.cfg
        hc = c["hc_mult"]
        eps = c["hc_eps"]
        xf = x.flatten(2).float().flatten(0, 1)
        with exact_fp32(self.m.hp):
            mix = F.linear(xf, self.p[pre + "_fn"])
        mix = mix * torch.rsqrt(xf.square().mean(-1, keepdim=True) + c["rms_norm_eps"])
        s, b = self.p[pre + "_scale"], self.p[pre + "_base"]
        a = torch.sigmoid(mix[:, :hc] * s[0] + b[:hc]) + eps
        post = 2 * torch.sigmoid(mix[:, hc : 2 * hc] * s[1] + b[hc : 2 * hc])
        comb = (mix[:, 2 * hc :] * s[2] + b[2 * hc :]).view(-1, hc, hc)
        comb = _Sinkhorn.apply(comb.softmax(-1) + eps, c["hc_sinkhorn_iters"], eps)
        return a, post, comb

    def hc_in(self, x, a):
        B, S, hc, D = x.shape
        if self.m.hp:
            return (a.view(B, S, hc, 1) * x.float()).sum(2).to(x.dtype)
        return torch.bmm(a.to(x.dtype).unsqueeze(1), x.view(B * S, hc, D)).view(B, S, D)

    def hc_out(self, y, res, post, comb):
        B, S, hc, D = res.shape
        if self.m.hp:
            with exact_fp32(True):
                r = torch.bmm(comb.transpose(1, 2), res.float().view(B * S, hc, D)).view(B, S, hc, D)
            return (post.view(B, S, hc, 1) * y.float().unsqueeze(2) + r).to(res.dtype)
        r = torch.bmm(comb.transpose(1, 2).to(res.dtype), res.view(B * S, hc, D)).view(B, S, hc, D)
        return torch.addcmul(r, post.view(B, S, hc, 1).to(res.dtype), y.unsqueeze(2))

    def compress(self, pre, x, d, r):
        B, S, _ = x.shape
        N = S // r
        p = self.p
        if self.m.hp:
            kv, sc = F.linear(x.float(), p[pre + "wkv.weight"].float()), F.linear(
                x.float(), p[pre + "wgate.weight"].float()
            )
        else:
            kv, sc = F.linear(x, self.w(pre + "wkv.weight")), F.linear(x, self.w(pre + "wgate.weight"))
        kv, sc = kv[:, : N * r].view(B, N, r, -1), sc[:, : N * r].view(B, N, r, -1) + p[pre + "ape"].to(
            sc.dtype
        )
        if r == 4:
            kp = F.pad(kv[:, :-1, :, :d], (0, 0, 0, 0, 1, 0))
            sp = F.pad(
                sc[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=-1e30 if sc.dtype == torch.float32 else -3e38
            )
            kv, sc = torch.cat((kp, kv[..., d:]), 2), torch.cat((sp, sc[..., d:]), 2)
        kv = (kv * sc.softmax(2)).sum(2).to(x.dtype)
        kv = (rms_hp if self.m.hp else rms)(kv, p[pre + "norm.weight"], self.cfg["rms_norm_eps"])
        cos, sin = self.tables(self.S)[1]
        return rope(kv, cos[: N * r : r], sin[: N * r : r])

    def kvq(self, kv):
        if not self.m.kv8:
            return kv
        return torch.cat((ste(kv[..., :-64].contiguous(), q8_act, 64), kv[..., -64:]), -1)

    def index_scores(self, A, x, qr, sl):
        """Indexer scores for the query slice sl: [B, len, N] (float32), and nothing masked."""
        c = self.cfg
        m = self.m
        B = x.shape[0]
        ih, idd = c["index_n_heads"], c["index_head_dim"]
        cos, sin = self.tables(self.S)[1]
        iq = self.lin(qr[:, sl], A + "indexer.wq_b.weight").view(B, -1, ih, idd)
        iq = rope(iq, cos[sl][:, None], sin[sl][:, None])
        ik = self.ik
        if m.idx != "bf16":
            q = (lambda t: q4_act(t, 32)) if m.idx == "fp4" else (lambda t: q8_act(t, min(128, t.shape[-1])))
            iq = ste(hadamard(iq), q)
        w = F.linear(x[:, sl], self.w(A + "indexer.weights_proj.weight")) * (idd**-0.5 * ih**-0.5)
        n = iq.shape[1]
        if m.hp:
            s = (
                torch.bmm(iq.reshape(B, n * ih, idd).float(), ik.float().transpose(1, 2))
                .view(B, n, ih, -1)
                .relu_()
            )
            return (s * w.float().unsqueeze(-1)).sum(2)
        s = torch.bmm(iq.reshape(B, n * ih, idd), ik.transpose(1, 2)).view(B, n, ih, -1).relu()
        return (s * w.unsqueeze(-1)).sum(2, dtype=torch.float32)

    def attn(self, i, x):
        c, m, p = self.cfg, self.m, self.p
        A = f"layers.{i}.attn."
        r = c["compress_ratios"][i]
        eps = c["rms_norm_eps"]
        B, S, _ = x.shape
        H, hd, W = c["num_attention_heads"], c["head_dim"], c["sliding_window"]
        norm = rms_hp if m.hp else rms
        cos, sin = self.tables(S)[1 if r else 0]
        qr = norm(self.lin(x, A + "wq_a.weight"), p[A + "q_norm.weight"], eps)
        q = self.lin(qr, A + "wq_b.weight").view(B, S, H, hd)
        q = q * torch.rsqrt(q.float().square().mean(-1, keepdim=True) + eps).to(q.dtype)
        q = rope(q, cos[:, None], sin[:, None])
        kv = norm(self.lin(x, A + "wkv.weight"), p[A + "kv_norm.weight"], eps)
        kv = self.kvq(rope(kv, cos, sin))
        ckv = self.kvq(self.compress(A + "compressor.", x, hd, r)) if r else None
        if r == 4:
            xd, qrd = (x.detach(), qr.detach()) if m.train else (x, qr)
            ik = self.compress(A + "indexer.compressor.", xd, c["index_head_dim"], 4)
            if m.idx != "bf16":
                ik = ste(
                    hadamard(ik), (lambda t: q4_act(t, 32)) if m.idx == "fp4" else (lambda t: q8_act(t, min(128, t.shape[-1])))
                )
            self.ik = ik
        nb = S // W
        kb = kv.view(B, nb, W, hd)
        kk = torch.cat((F.pad(kb[:, :-1], (0, 0, 0, 0, 1, 0)), kb), 2)  # [B,nb,2W,hd]
        j, t = torch.arange(2 * W, device=x.device), torch.arange(W, device=x.device)[:, None]
        band = (j <= t + W) & (j > t)  # [W,2W]
        outs, ch = [], m.chunk or S
        for s0 in range(0, S, ch):
            sl = slice(s0, min(s0 + ch, S))
            n = sl.stop - sl.start
            b0, b1 = s0 // W, sl.stop // W
            f = (lambda z: z.float()) if m.hp else (lambda z: z)
            qc = q[:, sl].reshape(B, n * H, hd)
            lw = torch.matmul(f(qc).view(B, b1 - b0, W * H, hd), f(kk[:, b0:b1]).transpose(-1, -2)) * hd**-0.5
            ok = band.expand(b1 - b0, W, 2 * W)
            if b0 == 0:
                ok = ok & ((torch.arange(b1 - b0, device=x.device) > 0)[:, None, None] | (j >= W))
            neg = -1e30 if lw.dtype == torch.float32 else -3e38
            lw = lw.view(B, b1 - b0, W, H, 2 * W).masked_fill(~ok[:, :, None], neg).view(B, n, H, 2 * W)
            parts = [lw]
            N = 0
            if r:
                N = S // r
                lc = (torch.bmm(f(qc), f(ckv).transpose(1, 2)) * hd**-0.5).view(B, n, H, N)
                vis = (
                    torch.arange(N, device=x.device)[None]
                    < (torch.arange(sl.start + 1, sl.stop + 1, device=x.device) // r)[:, None]
                )
                if (m.no128 and r == 128) or (m.no4 and r == 4):
                    vis = vis & False
                if r == 128 and m.hide128 is not None:
                    vis = vis & ~m.hide128
                keep = vis[None]
                if r == 4 and (m.kl or m.topk):
                    sc = self.index_scores(A, xd, qrd, sl)
                    sc = sc.masked_fill(~vis, -1e30)
                    if m.topk and m.topk < N:
                        with torch.no_grad():
                            top = sc.topk(m.topk, -1)[1]
                            keep = vis[None] & torch.zeros_like(sc, dtype=torch.bool).scatter_(-1, top, True)
                            if self.probe is not None:
                                self.probe_out.setdefault(i, []).append((sl, keep))
                    if m.kl:
                        self.kl_loss(lw, lc, vis, p[A + "attn_sink"], sc)
                lc = lc.masked_fill(~keep.unsqueeze(2), neg)
                parts.append(lc)
            tail = torch.full((H, 8), neg, device=x.device, dtype=torch.float32).index_copy(
                1, torch.zeros(1, dtype=torch.long, device=x.device), p[A + "attn_sink"].float()[:, None]
            )
            parts.append(tail.to(lw.dtype).expand(B, n, H, 8))
            pr = torch.cat(parts, -1).softmax(-1).to(q.dtype)  # [B,n,H,2W+N+8]
            tot = pr.shape[-1]
            o = torch.matmul(pr.view(B, b1 - b0, W * H, tot)[..., : 2 * W], kk[:, b0:b1]).view(B, n * H, hd)
            if r:
                o = o + torch.bmm(pr.view(B, n * H, tot)[..., 2 * W : 2 * W + N], ckv)
            outs.append(o.view(B, n, H, hd))
        o = rope(torch.cat(outs, 1) if len(outs) > 1 else outs[0], cos[:, None], sin[:, None], True)
        G = c["o_groups"]
        wo_a = self.w(A + "wo_a.weight").view(G, c["o_lora_rank"], -1)
        o = torch.einsum("bsgd,grd->bsgr", o.reshape(B, S, G, -1), wo_a).flatten(2)
        return self.lin(o, A + "wo_b.weight")

    def kl_loss(self, lw, lc, vis, sink, sc):
        """Cross-entropy of the indexer's distribution against the head-summed dense attention over compressed entries,
        weighted by the attention mass that goes there and more where an answer value is being produced."""
        with torch.no_grad():
            lc = lc.masked_fill(~vis[:, None], -3e38 if lc.dtype != torch.float32 else -1e30)
            mx = torch.maximum(torch.maximum(lw.amax(-1), lc.amax(-1)).float(), sink)
            den = (lw - mx.to(lw.dtype).unsqueeze(-1)).exp().sum(-1, dtype=torch.float32) + (sink - mx).exp()
            ec = (lc - mx.to(lc.dtype).unsqueeze(-1)).exp()
            den = den + ec.sum(-1, dtype=torch.float32)
            tgt = (ec * (1 / den).to(ec.dtype).unsqueeze(-1)).sum(
                2, dtype=torch.float32
            )  # [B,n,N], sums to at most H
            tgt = tgt * self.kl_w.unsqueeze(-1)
        self.kls.append(-(tgt * sc.log_softmax(-1)).sum() / tgt.sum().clamp_min(1e-6))

    def moe(self, i, x, ids):
        c, m, p = self.cfg, self.m, self.p
        P = f"layers.{i}.ffn."
        E, I, k = c["n_routed_experts"], c["moe_intermediate_size"], c["num_experts_per_tok"]
        B, S, D = x.shape
        x = x.reshape(-1, D)
        sc = F.softplus(F.linear(x.float(), p[P + "gate.weight"].float())).sqrt()
        if i < c["num_hash_layers"]:
            sel = self.buf[P + "gate.tid2eid"][ids.reshape(-1)]
        else:
            bias = self.buf[P + "gate.bias"]
            sel = (sc.detach() + bias).topk(k, -1)[1]
        mask = torch.zeros_like(sc).scatter_(1, sel, 1.0)
        if m.train and i >= c["num_hash_layers"]:
            with torch.no_grad():
                bias += 1e-3 * torch.sign(k / E - mask.mean(0))
        g = sc * mask
        g = g / g.sum(-1, keepdim=True) * c["routed_scaling_factor"]
        lim = c["swiglu_limit"]

        def act(u, v):
            if m.hp:
                u, v = u.float(), v.float()
            return F.silu(u.clamp(max=lim)) * v.clamp(-lim, lim)

        if m.act8 and m.expert_act == "fp8":
            xq = ste(x, q8_act, 128)
        elif m.act8 and m.expert_act == "nvfp4":
            xq = nvfp4(x)
        else:
            xq = x
        h = act(
            F.linear(xq, self.w(P + "experts.w1").reshape(E * I, D)),
            F.linear(xq, self.w(P + "experts.w3").reshape(E * I, D)),
        )
        h = (h.view(-1, E, I) * g.to(h.dtype).unsqueeze(-1)).to(x.dtype)
        if m.act8 and m.expert_act == "fp8":
            h = ste(h, q8_act, 128)
        elif m.act8 and m.expert_act == "nvfp4":
            h = nvfp4(h)
        y = F.linear(h.flatten(1), self.w(P + "experts.w2").permute(1, 0, 2).reshape(D, E * I))
        xs = ste(x, q8_act, 128) if m.act8 else x
        h = act(
            F.linear(xs, self.w(P + "shared_experts.w1.weight")),
            F.linear(xs, self.w(P + "shared_experts.w3.weight")),
        ).to(x.dtype)
        return (y + self.lin(h, P + "shared_experts.w2.weight")).view(B, S, D)

    # -------------------------------------------------------------- forward
    def forward(self, ids, mode, kl_w=None, probe=None):
        """ids [B,S] (S a multiple of 128) -> normalised hidden states [B,S,D]."""
        self.m, self.S, self.kl_w, self.kls = mode, ids.shape[1], kl_w, []
        self.probe, self.probe_out = probe, {}
        c = self.cfg
        norm = rms_hp if mode.hp else rms
        x = F.embedding(ids, self.p["embed.weight"]).to(self.cd).unsqueeze(2).repeat(1, 1, c["hc_mult"], 1)
        for i in range(c["num_hidden_layers"]):
            L = f"layers.{i}."
            for n in ("attn", "ffn"):
                a, post, comb = self.hc_mix(x, L + "hc_" + n)
                y = norm(self.hc_in(x, a), self.p[L + n + "_norm.weight"], c["rms_norm_eps"])
                y = self.attn(i, y) if n == "attn" else self.moe(i, y, ids)
                x = self.hc_out(y, x, post, comb)
        xf = x.flatten(2).float()
        with exact_fp32(mode.hp):
            mix = F.linear(xf, self.p["hc_head_fn"])
        mix = mix * torch.rsqrt(xf.square().mean(-1, keepdim=True) + c["rms_norm_eps"])
        a = torch.sigmoid(mix * self.p["hc_head_scale"] + self.p["hc_head_base"]) + c["hc_eps"]
        return norm(self.hc_in(x, a.flatten(0, 1)), self.p["norm.weight"], c["rms_norm_eps"])

    def logits(self, h):
        if self.m.hp:
            return F.linear(h.float(), self.p["head.weight"].float())
        return F.linear(h, self.w("head.weight"))
