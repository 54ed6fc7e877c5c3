"""One peer as a process that keeps its model: worker.py PEER MODEL THREADS

Reads one JSON request a line, {"ids": [...], "steps": N}, and answers with one line
{"tokens": [N ids], "prefill_seconds": s, "decode_seconds": s of the N-1 steps after the first token}.
The first line it prints is {"peer", "version", ...} once the model is loaded, or {"error"}."""

import json
import sys
import time
import urllib.request


class Transformers:
    """DeepseekV4ForCausalLM of transformers, with its own cache."""

    def __init__(self, model, threads, dtype):
        import torch
        import transformers
        self.torch = torch
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.about = {"version": f"transformers {transformers.__version__}, torch {torch.__version__}", "weights": dtype,
                      "class": type(self.model).__name__}

    def run(self, ids, steps):
        torch = self.torch
        with torch.inference_mode():
            begin = time.perf_counter()
            out = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
            tokens = [int(out.logits[0, -1].argmax())]
            first = time.perf_counter()
            for _ in range(steps - 1):
                out = self.model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
                tokens.append(int(out.logits[0, -1].argmax()))
            end = time.perf_counter()
        return tokens, first - begin, end - first


class Plain:
    """The architecture in plain PyTorch (tools/needle-model), with the reference's roundings. It has no incremental decoding:
    a step computes the whole sequence again."""

    def __init__(self, model, threads, _):
        import torch
        import prepare  # puts tools/needle-model on the path
        from ckpt import load_native
        from evaluate import EXACT
        from model import Mode
        del prepare
        self.torch = torch
        torch.set_num_threads(threads)
        self.mode = Mode(**EXACT)
        self.model = load_native(model)
        self.about = {"version": f"torch {torch.__version__}", "weights": "float32"}

    def run(self, ids, steps):
        torch = self.torch

        def next_token(sequence):
            whole = sequence + [1] * (-len(sequence) % 128)  # what follows does not change what is before it
            hidden = self.model.forward(torch.tensor([whole]), self.mode)
            return int(self.model.logits(hidden[0, len(sequence) - 1]).argmax())

        with torch.no_grad():
            begin = time.perf_counter()
            tokens = [next_token(ids)]
            first = time.perf_counter()
            for _ in range(steps - 1):
                tokens.append(next_token(ids + tokens))
            end = time.perf_counter()
        return tokens, first - begin, end - first


class LlamaCpp:
    """llama.cpp's server inside this process (xllamacpp), with its own timings."""

    def __init__(self, model, threads, _):
        from importlib.metadata import version

        import xllamacpp
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx = 8192
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.warmup = True
        self.server = xllamacpp.Server(params)
        self.about = {"version": f"xllamacpp {version('xllamacpp')}", "weights": "GGUF, the converter's " + model.rsplit("-", 1)[-1].split(".")[0]}
        self.about["system"] = str(xllamacpp.get_system_info())

    def run(self, ids, steps):
        request = {"prompt": ids, "n_predict": steps, "temperature": 0.0, "top_k": 1, "samplers": ["top_k"],
                   "cache_prompt": False, "ignore_eos": True, "return_tokens": True}
        # The server's own protocol: that of its Python calls does not tell token ids.
        post = urllib.request.Request(self.server.listening_address + "/completion", json.dumps(request).encode(),
                                      {"Content-Type": "application/json"})
        with urllib.request.urlopen(post, timeout=600) as reply:
            answer = json.load(reply)
        timings = answer["timings"]
        return answer["tokens"], timings["prompt_ms"] * 1e-3, timings["predicted_ms"] * 1e-3


PEERS = {"transformers-float32": (Transformers, "float32"), "transformers-bfloat16": (Transformers, "bfloat16"),
         "plain-pytorch": (Plain, ""), "llama.cpp": (LlamaCpp, "")}


def main(peer, model, threads):
    # What libraries print must not come between the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    kind, argument = PEERS[peer]
    try:
        worker = kind(model, int(threads), argument)
    except Exception as error:  # pylint: disable=broad-except
        print(json.dumps({"peer": peer, "error": f"{type(error).__name__}: {error}"[:500]}), file=answers, flush=True)
        return 1
    print(json.dumps({"peer": peer, **worker.about}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            tokens, prefill, decode = worker.run(request["ids"], request["steps"])
            answer = {"tokens": tokens, "prefill_seconds": prefill, "decode_seconds": decode}
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in PEERS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
