"""The patterns by which byte-pair vocabularies cut text, by the names that GGUF files give them (`tokenizer.ggml.pre`).

Facts about models, read off llama.cpp. A cut has one or several patterns; each is applied to the pieces of the one
before, and text that a pattern does not match is a piece of its own. What llama.cpp does by hand-written code stands
here as the pattern it was written for:

- GPT-2's pattern has the `|\\s+` of the code, which the published list has not.
- "kimi-k2" and the digit groups of "afmoe" and "tiny_aya" are such code.
- "exaone-moe" and "kimi-k2" say what they take without a loop over words and a difference of sets.
- Meta publishes Llama 3's pattern with `(?i:'s|'t|...)`, which also takes U+017F (long s) for an s; the code does not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The patterns of one family of vocabularies, and the values that its files leave out."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is not merged up from bytes
    clean_spaces: bool = False  # the model's wish for decoding
    adds_bos: bool = False  # unless the file says otherwise
    raw_text: bool = False  # tokens are text with U+2581 for spaces, not bytes in GPT-2's alphabet


GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words with one space between them, which Exaone publishes as a loop over words with loops in it.
PUBLISHED_WORDS = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
WORDS = r"\p{L}(?:[\p{L}\p{M}]| (?=\p{L}))*"
_NUMBER = r"\p{N}"
_NUMBERS_OF_3 = r"\p{N}{1,3}"
# Both count the digits behind each place, over and over: `cutting` does the same in one pass over a long number.
DIGITS_IN_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
BEFORE_THREES_OF_DIGITS = r"(?=(\d{3})+(?!\d))"
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

_CUT_LLAMA3 = (LLAMA3,)
_CUT_JAIS2 = (
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)"
        r"|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
        r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ),
)
_CUT_DEEPSEEK_LLM = (
    r"[\r\n]",
    (
        r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370"
        r"-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
        r"\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00"
        r"-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
        r"\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
        r"\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
        r"\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
        r"\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-"
        r"\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0"
        r"-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900"
        r"-\U0001e943]+"
    ),
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_CUT_DEEPSEEK3_LLM = (
    _NUMBERS_OF_3,
    _CJK,
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_YOUTU = (
    (
        r"[\uac00-\ud7a3\u3131-\u318e]+"
        r"|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        r"|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR]["
        r"eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR]"
        r"[eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    _NUMBER,
)
_CUT_FALCON = (
    r"[\p{P}\$\+<=>\^~\|`]+",
    GPT2,
    r"[0-9][0-9][0-9]",
)
_CUT_STARCODER = (
    _NUMBER,
    GPT2,
)
_CUT_GPT2 = (GPT2,)
_CUT_STABLELM2 = (
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_QWEN35 = (
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_PORO = (_BLOOM,)
_CUT_VIKING = (
    _BLOOM,
    _NUMBER,
)
_CUT_TEKKEN = (
    (
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
        r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_CHAMELEON = (
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    _NUMBER,
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
_CUT_GPT4O = (
    (
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|"
        r"'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]"
        r"|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_GRANITE_EMB_MULTI = (
    (
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))*((?=[\p{L}\p{M}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|"
        r"'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))+((?=[\p{L}\p{M}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]"
        r"|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_TINY_AYA = (
    DIGITS_IN_THREES,
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR]["
        r"eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR]"
        r"[eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_KIMI_K2 = (
    (
        r"\p{Han}+"
        r"|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*"
        r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+"
        r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
        r"|\s+"
    ),
)
_CUT_SUPERBPE = (
    r"\p{N}+",
    BEFORE_THREES_OF_DIGITS,
)
_CUT_BAILINGMOE = (
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
)
_CUT_SEED_CODER = (
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_AFMOE = (
    DIGITS_IN_THREES,
    (
        r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40"
        r"-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
        r"]+"
    ),
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_EXAONE_MOE = (
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{WORDS}|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
)
_CUT_GEMMA4 = (r"[^\n]+|[\n]+",)
_CUT_MINICPM5 = (
    _NUMBERS_OF_3,
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_CUT_WHITESPACE = (r"\S+",)
_CUT_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    GPT2,
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)

# What each name stands for; names in one row are one way of cutting.
_BY_NAMES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(_CUT_DEFAULT, clean_spaces=True)),
    ("minicpm5", PreTokenizer(_CUT_MINICPM5, ignore_merges=True, clean_spaces=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer(_CUT_LLAMA3, ignore_merges=True, clean_spaces=True, adds_bos=True),
    ),
    ("deepseek-llm", PreTokenizer(_CUT_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(_CUT_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm", PreTokenizer(_CUT_DEEPSEEK3_LLM)),
    ("youtu", PreTokenizer(_CUT_YOUTU, ignore_merges=True)),
    ("falcon", PreTokenizer(_CUT_FALCON, clean_spaces=True)),
    (
        "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
        "jina-v2-code roberta-bpe olmo jais exaone4",
        PreTokenizer(_CUT_GPT2, clean_spaces=True),
    ),
    ("starcoder refact codeshell exaone minerva-7b mellum2", PreTokenizer(_CUT_STARCODER, clean_spaces=True)),
    ("jais-2", PreTokenizer(_CUT_JAIS2, clean_spaces=True)),
    ("gemma4 granite-embed-multi-311m", PreTokenizer(_CUT_GEMMA4, clean_spaces=True, raw_text=True)),
    ("sarvam-moe", PreTokenizer(_CUT_GEMMA4, raw_text=True)),
    ("whitespace", PreTokenizer(_CUT_WHITESPACE, clean_spaces=True)),
    ("command-r smollm", PreTokenizer(_CUT_STARCODER)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 solar-open", PreTokenizer(_CUT_STABLELM2)),
    ("qwen35", PreTokenizer(_CUT_QWEN35)),
    ("stablelm2 megrez", PreTokenizer(_CUT_STABLELM2, clean_spaces=True)),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer(_CUT_LLAMA3, clean_spaces=True)),
    ("poro-chat", PreTokenizer(_CUT_PORO)),
    ("viking", PreTokenizer(_CUT_VIKING)),
    ("tekken", PreTokenizer(_CUT_TEKKEN, ignore_merges=True, adds_bos=True)),
    ("bloom gpt3-finnish", PreTokenizer(_CUT_PORO, clean_spaces=True)),
    ("exaone-moe", PreTokenizer(_CUT_EXAONE_MOE, clean_spaces=True)),
    ("chameleon", PreTokenizer(_CUT_CHAMELEON, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer(_CUT_GPT4O)),
    ("granite-embed-multi-97m", PreTokenizer(_CUT_GRANITE_EMB_MULTI, ignore_merges=True)),
    ("tiny_aya cohere2moe", PreTokenizer(_CUT_TINY_AYA)),
    ("superbpe", PreTokenizer(_CUT_SUPERBPE)),
    ("trillion granite-docling", PreTokenizer(_CUT_GPT2)),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer(_CUT_BAILINGMOE)),
    ("seed-coder", PreTokenizer(_CUT_SEED_CODER)),
    ("kimi-k2", PreTokenizer(_CUT_KIMI_K2)),
    ("afmoe", PreTokenizer(_CUT_AFMOE)),
)

PRE_TOKENIZERS = {name: cut for names, cut in _BY_NAMES for name in names.split()}
