"""Runs the converter of a llama.cpp checkout on the embedded model: convert_gguf.py SOURCE MODEL OUT.gguf OUTTYPE

One thing differs from calling it directly: the converter knows pre-tokenizers by a hash of what they make of a test text,
and the embedded model's small vocabulary has a hash of its own. Its pre-tokenizer is that of the large model, so that one is
named. The benchmark hands over token ids in any case."""

import os
import sys


def main(source, model, target, outtype):
    sys.path.insert(0, source)
    sys.path.insert(0, os.path.join(source, "gguf-py"))
    os.environ.setdefault("NO_LOCAL_GGUF", "")
    try:
        from conversion.base import TextModel
    except ImportError:  # before the converter became a package
        from convert_hf_to_gguf import TextModel
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "deepseek-v3"
    import convert_hf_to_gguf
    sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", target, "--outtype", outtype]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
