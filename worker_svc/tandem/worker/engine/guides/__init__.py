"""Guided decoding: a guide (JSON schema, regex, choices, Lark grammar) restricts which ids may come next.

Each guide lives in a process of its own, which compiles it and makes its masks. llguidance never runs in the engine:

    engine, rank 0     `host.py` ── starts ──▶ `fork_server.py`: builds the vocabulary once, and forks
                          │                        │ fork, 2 ms and 2 MB, as the vocabulary is shared
                          └──── a socket each ──▶ `keeper.py`: one guide, its matchers, one for each request

because a compiled guide cannot move between processes, and what a stranger wrote can overflow a stack, take gigabytes
or compute for minutes, at its compilation or at any mask. Whatever it does, it does to its own process, which runs
behind the engine (`nice`), under limits on memory, stack and seconds, and is killed. A check in a process of its own
before compiling in the engine would be smaller, but a mask that takes seconds could not be ended there.

What a request needs of its matcher is told by messages, and a matcher is a pure function of the output so far: a
process that ends is made again and gets the output again, and what rows get is the same bits whenever it comes.

    land     what was sampled is told to the matcher; it answers whether the grammar has ended, then with the next mask
    sample   rows whose mask has come are sampled; a row whose mask has not come is left out of steps until it has

Decisions are made from `Matcher`s, which all ranks of an engine keep alike: rank 0 hears, and shares what it heard at
the same places of the same steps (`Grammars.hear`).
"""
