"""Other people's engines: scripts for interpreters that have them, which measure what `models.py` does.

Each is called with a model, threads, the most tokens of a sequence and of all that run together, the most sequences,
and the name of the clock. It answers (`sides.py`): `prefill`, the seconds of a prompt of so many tokens; `decode`,
those of each step, given how many sequences of how many tokens and how many steps; llama.cpp also `greedy`, what is
likeliest after each of some ids.
"""

import inspect
import subprocess
from pathlib import Path

from benchmarks.sides import SERVE


def prompt(sequence: int, length: int) -> list[int]:
    """Returns a sequence's ids. Each has others, as users' have: rows that are alike choose the same experts, of which
    a step then reads fewer."""
    return [3 + 7919 * (place + 1000 * sequence) % 31000 for place in range(length)]


# What is measured of both llama.cpp and ik_llama.cpp, by `run`, `clear` and `likeliest`, which scripts define before.
_DECODES = """
def begin(sequence, length):
    return run([(token, i, sequence, i == length - 1) for i, token in enumerate(prompt(sequence, length))])
def greedy(ids):
    clear()
    run([(token, place, 0, 1) for place, token in enumerate(ids)])
    return [likeliest(place) for place in range(len(ids))]
def prefill(length):
    clear()
    return begin(0, length)
def decode(batch, context, steps):
    clear()
    tokens, seconds = [], []
    for s in range(batch):
        begin(s, context)
        tokens.append(likeliest(context - 1))
    for n in range(steps):
        seconds.append(run([(tokens[s], context + n, s, 1) for s in range(batch)]))
        tokens = [likeliest(s) for s in range(batch)]
    return seconds
serve({"greedy": greedy, "prefill": prefill, "decode": decode})
"""

LLAMA_CPP = (
    f"{SERVE}{inspect.getsource(prompt)}"
    """
import ctypes, math, time
import llama_cpp as l
import numpy as np
path, clock = sys.argv[1], getattr(time, sys.argv[6])
threads, longest, together, most = map(int, sys.argv[2:6])
quiet = l.llama_log_callback(lambda *a: None)  # kept: llama.cpp calls it as long as it runs
l.llama_log_set(quiet, ctypes.c_void_p(0))
l.llama_backend_init()
model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
p = l.llama_context_default_params()
p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = together, longest, 512, most
p.n_threads = p.n_threads_batch = threads
p.kv_unified = True
ctx = l.llama_init_from_model(model, p)
room = l.llama_batch_init(longest, 0, 1)
words = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model))
def run(rows):
    room.n_tokens = len(rows)
    for i, (token, place, sequence, wanted) in enumerate(rows):
        room.token[i], room.pos[i], room.n_seq_id[i] = token, place, 1
        room.seq_id[i][0], room.logits[i] = sequence, wanted
    began = clock()
    assert l.llama_decode(ctx, room) == 0
    l.llama_synchronize(ctx)
    seconds = clock() - began
    assert math.isfinite(sum(l.llama_get_logits_ith(ctx, len(rows) - 1)[:100]))
    return seconds
def clear():
    l.llama_memory_clear(l.llama_get_memory(ctx), True)
def likeliest(row):
    return int(np.ctypeslib.as_array(l.llama_get_logits_ith(ctx, row), (words,)).argmax())
"""
    f"{_DECODES}"
)

# By way of `ik_llama.c`, compiled with its checkout's build (-DBUILD_SHARED_LIBS=ON); "repacked": its option -rtr.
IK_LLAMA = (
    f"{SERVE}{inspect.getsource(prompt)}"
    """
import ctypes, time
import numpy as np
path, clock = sys.argv[1], getattr(time, sys.argv[6])
threads, longest, together, most = map(int, sys.argv[2:6])
library = ctypes.CDLL(sys.argv[7])
library.ik_open.restype = ctypes.c_void_p
engine = ctypes.c_void_p(library.ik_open(path.encode(), threads, longest, together, most, sys.argv[8] == "repacked"))
assert engine, "ik_llama.cpp does not load it"
def run(rows):
    columns = np.ascontiguousarray(np.array(rows, np.int32).T)
    began = clock()
    failed = library.ik_run(engine, len(rows), *(column.ctypes.data_as(ctypes.c_void_p) for column in columns))
    seconds = clock() - began
    assert not failed and likeliest(len(rows) - 1) >= 0
    return seconds
def clear():
    library.ik_clear(engine)
def likeliest(row):
    return library.ik_likeliest(engine, row)
"""
    f"{_DECODES}"
)


def compile_ik_llama(checkout: Path, folder: Path) -> Path:
    """Returns the library that IK_LLAMA loads, made in `folder`."""
    library = folder / "ik_llama.so"
    homes = [checkout.resolve() / "build" / home for home in ("src", "ggml/src")]
    command = ["cc", "-O2", "-shared", "-fPIC", str(Path(__file__).with_name("ik_llama.c")), "-o", str(library)]
    command += [f"-I{checkout / home}" for home in ("include", "ggml/include")]
    for home, name in zip(homes, ("llama", "ggml"), strict=True):
        command += [f"-L{home}", f"-Wl,-rpath,{home}", f"-l{name}"]
    subprocess.run(command, check=True)
    return library


VLLM = (
    f"{SERVE}{inspect.getsource(prompt)}"
    """
import time
folder, clock = sys.argv[1], getattr(time, sys.argv[6])
threads, longest, together, most = map(int, sys.argv[2:6])
from vllm import LLM, SamplingParams
engine = LLM(
    folder, dtype="bfloat16", load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
    max_model_len=longest, max_num_seqs=most, max_num_batched_tokens=together,
).llm_engine
added = 0
def add(length, tokens):
    global added
    added += 1
    wanted = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    engine.add_request(str(added), {"prompt_token_ids": prompt(added, length)}, wanted)
def run():
    # seconds of each step, and of how many requests it brought tokens
    told = []
    while engine.has_unfinished_requests():
        began = clock()
        told.append((len(engine.step()), clock() - began))
    return told
def prefill(length):
    add(length, 1)
    return sum(seconds for _, seconds in run())
def decode(batch, context, steps):
    for _ in range(batch):
        add(context, steps + 2)
    seconds = [each for count, each in run() if count == batch]
    return seconds[1:-1]  # without the prompts' and the last one
serve({"prefill": prefill, "decode": decode})
"""
)
VLLM_CPU = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
VLLM_CPU |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

# Prompts are text of the file's words, each of them a token, and answers are streams; a step's seconds are those from a
# stream's first chunk to its last, over its tokens. On a CPU sequences are computed together whose lengths are equal,
# and it fails where these are two quantized prompts ("input tensor is not contiguous"). So each prompt is computed
# before, alone, but for its last token, and all are sent while another is computed, so that they begin in one step.
MISTRALRS = (
    f"{SERVE}"
    """
import itertools, os, statistics, string, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from mistralrs import ChatCompletionRequest, Runner, Which
path, clock = sys.argv[1], getattr(time, sys.argv[6])
threads, longest, together, most = map(int, sys.argv[2:6])
with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
    template.write("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    template.flush()
    runner = Runner(
        Which.GGUF(*os.path.split(path)), max_seqs=most + 1, prefix_cache_n=2 * most, token_source="none",
        jinja_explicit=template.name,
    )
words = [" " + "".join(word) for word in itertools.product(string.ascii_lowercase, repeat=3)][:1000]
added = itertools.count()
readers = ThreadPoolExecutor(most)
def text(length):
    # none begins as another
    first = 7 * next(added)
    return [words[(first + i) % 1000] for i in range(length)]
def send(text, tokens):
    return runner.send_chat_completion_request(ChatCompletionRequest(
        [{"role": "user", "content": "".join(text)}], "default",
        max_tokens=tokens, temperature=0.0, ignore_eos=True, stream=True,
    ))
def read(stream, length, tokens):
    # when chunks came: of each token but those that are a part of a character, and of the end
    times, used = [], None
    for chunk in stream:
        times.append(clock())
        used = chunk.usage or used
    assert (used.prompt_tokens, used.completion_tokens) == (length, tokens), used
    return times
def prefill(length):
    asked = text(length)
    began = clock()
    return read(send(asked, 1), length, 1)[-1] - began
def decode(batch, context, steps):
    begins, tokens = [text(context - 1) for _ in range(batch)], steps + 1
    for each in begins:
        read(send(each, 1), context - 1, 1)
    before = send(text(2 * context), 1)
    streams = [send([*begin, words[batch]], tokens) for begin in begins]
    came = list(readers.map(lambda stream: read(stream, context, tokens), streams))
    read(before, 2 * context, 1)
    step = statistics.median((each[-1] - each[0]) / steps for each in came)
    begun = sorted(each[0] for each in came)
    assert begun[-1] - begun[0] < 3 * step, "streams did not begin together"
    return [step]
serve({"prefill": prefill, "decode": decode})
"""
)
