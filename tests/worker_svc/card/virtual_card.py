"""A card that is not there: tensors of device "cuda" whose numbers a processor keeps and computes.

What is true of a real one holds here, and what would go wrong on one fails here:

    devices     An operation on tensors of the card and of the host together is an error, and so is looking at the
                numbers of one.
    time        The host waits where it would wait: for numbers that it reads, for a copy that is not pinned, for an
                event. Every wait is noted, with who waited and how much work the card had left to do behind it.
    copies      What is on its way to the card must not be overwritten before it is there, and what is on its way to the
                host is rubbish until somebody has waited for it.
    graphs      A recording computes nothing; in it, nothing waits, is copied from or to the host, is pinned or is
                compiled. What it leaves behind is NaN until it is replayed.
    kernels     Every tensor argument lies on the card and the grid is one that a card takes; `kernels_in_torch.py` says
                what they compute. What would be compiled anew is counted.
    memory      What is allocated counts, is given back to the system only where torch is told to, and ends.

One stream; whatever the host computes in the meantime takes no time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.jit import KernelInterface

from tandem.worker.model.cuda.kernels import card as kernels_card
from tests.worker_svc.card.kernels_in_torch import KERNELS, scaled_product

DEVICE = torch.device("cuda", 0)
RUBBISH = 0x5A

aten = torch.ops.aten
# What tells the host something that only the card knows.
_READS = {
    aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select, aten._unique2,
    aten.unique_consecutive, aten.unique_dim, aten.bincount, aten.repeat_interleave, aten.isin,
}  # fmt: skip
_INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_LOOKUPS = {aten.index_select, aten.gather}  # (table, dimension, indices)


class CardTensor(torch.Tensor):
    """A tensor of the card; `numbers` are kept by the host, which must not look at them."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> CardTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, device=DEVICE,
        )  # fmt: skip

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a tensor of a card that is gone")

    def __repr__(self, **_: Any) -> str:
        return f"CardTensor({tuple(self.shape)}, {self.dtype})"


@dataclass(frozen=True)
class Wait:
    """The host has waited."""

    why: str
    who: str  # the functions that led to it, the last first
    behind: int  # operations that the card had still to do behind what was waited for


@dataclass
class _Copy:
    """A copy that nobody has waited for."""

    issued: int
    host: torch.Tensor
    content: torch.Tensor
    to_card: bool


@dataclass
class VirtualCard:
    """One card, `memory` bytes large."""

    memory: int = 80 << 30
    capability: tuple[int, int] = (9, 0)
    shared: int = 227 << 10  # bytes of shared memory that a program may have
    waits: list[Wait] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)  # kernels by name
    compiled: dict[str, set[Any]] = field(default_factory=dict)  # by kernel, what it was compiled for
    replays: int = 0
    recorded_on: list[object] = field(default_factory=list)  # the stream of each recording; None: the shared one
    sent: int = 0  # bytes, to the card
    most: int = 0  # bytes that were taken at once
    _issued: int = 0
    _done: int = 0
    _flying: list[_Copy] = field(default_factory=list)
    _pinned: dict[int, StorageWeakRef] = field(default_factory=dict)
    _taken: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    _estimate: int = 0  # bytes that are taken, or were not long ago
    recording: Graph | None = None

    # ------------------------------------------------------------------------------------------------------------- time

    def wait(self, why: str, upto: int | None = None) -> None:
        """The host waits until the card has done what was issued."""
        upto = self._issued if upto is None else upto
        assert self.recording is None, f"{why}, in a recording"
        if upto > self._done:
            frames = [f.name for f in reversed(traceback.extract_stack()) if "/worker_svc/tandem/worker/" in f.filename]
            self.waits.append(Wait(why, " < ".join(frames[:6]), self._issued - upto))
        self._complete(upto)

    def _complete(self, upto: int) -> None:
        self._done = max(self._done, upto)
        for copy in [copy for copy in self._flying if copy.issued <= upto]:
            self._flying.remove(copy)
            if copy.to_card:
                assert _same_bytes(copy.host, copy.content), "overwritten while it was on its way to the card"
            else:
                copy.host.copy_(copy.content)

    def settle(self) -> None:
        """What is still on its way arrives."""
        self._complete(self._issued)

    # ----------------------------------------------------------------------------------------------------------- memory

    def put(self, numbers: torch.Tensor) -> CardTensor:
        """A tensor of the card with these numbers; raises torch.OutOfMemoryError."""
        storage = numbers.untyped_storage()
        known = self._taken.get(storage.data_ptr())
        if storage.nbytes() and (known is None or known[0].expired()):
            self._taken[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
            self._estimate += storage.nbytes()
            if self._estimate > self.most:
                self._count()
                self.most = max(self.most, self._estimate)
            if self.most > self.memory:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {storage.nbytes()} bytes.")
        return CardTensor(numbers)

    def _count(self) -> None:
        self._taken = {at: entry for at, entry in self._taken.items() if not entry[0].expired()}
        self._estimate = sum(size for _, size in self._taken.values())

    def give_back(self) -> None:
        """`torch.cuda.empty_cache`: what nobody holds goes back to the system."""
        self._count()
        self.most = self._estimate

    @property
    def free(self) -> int:
        """As the driver tells: what was taken once, torch keeps."""
        return self.memory - self.most

    def forget(self) -> None:
        """As after a new start."""
        self.most = self._estimate = 0
        self._taken.clear()

    @property
    def properties(self) -> SimpleNamespace:
        """`torch.cuda.get_device_properties`."""
        major, minor = self.capability
        room = {"shared_memory_per_block_optin": self.shared, "shared_memory_per_multiprocessor": self.shared + 1024}
        return SimpleNamespace(major=major, minor=minor, multi_processor_count=4, **room)

    def pin(self, host: torch.Tensor) -> torch.Tensor:
        """Makes it memory that the card may read by itself."""
        assert self.recording is None, "pinned memory is allocated in a recording"
        assert not isinstance(host, CardTensor), "memory of the card is pinned"
        storage = host.untyped_storage()
        self._pinned[storage.data_ptr()] = StorageWeakRef(storage)
        return host

    def is_pinned(self, host: torch.Tensor) -> bool:
        """Whether the card may read it by itself."""
        entry = self._pinned.get(host.untyped_storage().data_ptr())
        return entry is not None and not entry.expired()

    # ------------------------------------------------------------------------------------------------------- operations

    def send(self, host: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
        """The numbers of a host's tensor, on their way to the card."""
        assert self.recording is None, "a copy from the host in a recording"
        if host.numel() and not (non_blocking and self.is_pinned(host)):
            self.wait("a copy to the card that is not pinned" if non_blocking else "a copy to the card")
        content = host.detach().clone()
        self._issued += 1
        self.sent += host.nbytes
        if host.numel():
            self._flying.append(_Copy(self._issued, host, content.clone(), to_card=True))
        return content

    def fetch(self, there: CardTensor, target: torch.Tensor | None, *, non_blocking: bool) -> torch.Tensor:
        """The card's numbers, on their way to the host."""
        assert self.recording is None, "a copy to the host in a recording"
        content = there.numbers.clone()
        if target is None or not (non_blocking and self.is_pinned(target)):
            self.wait("a copy to the host")
            return content if target is None else target.copy_(content)
        self._issued += 1
        content = content.to(target.dtype)
        _bytes(target).fill_(RUBBISH)
        self._flying.append(_Copy(self._issued, target, content, to_card=False))
        return target

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation of torch."""
        tensors = [x for x in _leaves((args, list(kwargs.values()))) if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if isinstance(x, CardTensor)]
        device = kwargs.get("device")
        wanted = torch.device(device).type if device is not None else None
        if not there and wanted != "cuda":
            copies_up = func is aten.copy_.default and isinstance(args[0], CardTensor)
            assert not copies_up
            return func(*args, **kwargs)
        packet = func.overloadpacket
        if packet is aten._to_copy:
            return self._converted(func, args, kwargs)
        if packet is aten.copy_ and isinstance(args[0], CardTensor) != isinstance(args[1], CardTensor):
            return self._copied(args[0], args[1], non_blocking=(*args[2:], kwargs.get("non_blocking"), False)[0])
        for x in tensors:
            alien = not isinstance(x, CardTensor) and x.dim() > 0
            assert not alien, f"{func} takes tensors of the card and of {x.device}"
        if packet in _READS or (packet in _INDEXED and any(i is not None and i.dtype == torch.bool for i in args[1])):
            self.wait(f"{packet.__name__} tells the host something")
        names = {"device": torch.device("cpu")} if wanted is not None else {}
        given, named = _each(args, _numbers_of), {name: _each(x, _numbers_of) for name, x in kwargs.items()}
        wrappers = {id(x.numbers): x for x in there}
        return self._issue(func, given, named | names, wrappers)

    def _issue(self, func: Any, args: Any, kwargs: Any, wrappers: Mapping[int, CardTensor]) -> Any:
        self._issued += 1
        owned = {x.numbers.untyped_storage().data_ptr() for x in wrappers.values()}
        if self.recording is not None and func._schema.is_mutable:
            assert len(func._schema.returns) <= 1, f"{func} in a recording"
            self.recording.steps.append(lambda: func(*args, **kwargs))
            written = kwargs.get("out", args[0] if args else None)
            return wrappers[id(written)]
        compute = scaled_product if func is aten._scaled_mm.default else func  # which a processor has not
        shaped = args
        if self.recording is not None and func.overloadpacket in _LOOKUPS:  # where indices are rubbish until replayed
            shaped = (*args[:2], torch.zeros_like(args[2]), *args[3:])
        if self.recording is not None and func.overloadpacket is aten.embedding:
            shaped = (args[0], torch.zeros_like(args[1]), *args[2:])
        results = compute(*shaped, **kwargs)
        fresh: list[torch.Tensor] = []

        def wrapped(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in wrappers:
                return wrappers[id(x)]
            if x.untyped_storage().data_ptr() not in owned:
                fresh.append(x)
            return self.put(x)

        out = _each(results, wrapped)
        if self.recording is not None and fresh:
            for x in fresh:
                _poison(x)

            def again() -> None:
                results = [x for x in _leaves(compute(*args, **kwargs)) if isinstance(x, torch.Tensor)]
                for target, result in zip(fresh, results, strict=True):
                    target.copy_(result)

            self.recording.steps.append(again)
        return out

    def _converted(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        source, device = args[0], kwargs.get("device")
        to_card = isinstance(source, CardTensor) if device is None else torch.device(device).type == "cuda"
        others = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking", "pin_memory")}
        blocking = not kwargs.get("non_blocking", False)
        if isinstance(source, CardTensor) and to_card:
            return self._issue(func, (source.numbers,), others, {id(source.numbers): source})
        if to_card:  # torch converts on the host first
            same = kwargs.get("dtype") in (None, source.dtype)
            host = source if same else func(source, **others)
            return self.put(self.send(host, non_blocking=not blocking))
        return func(self.fetch(source, None, non_blocking=False), **others)

    def _copied(self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool | None) -> torch.Tensor:
        if isinstance(target, CardTensor):
            target.numbers.copy_(self.send(source, non_blocking=bool(non_blocking)))
            return target
        assert isinstance(source, CardTensor)
        return self.fetch(source, target, non_blocking=bool(non_blocking))

    def launch(self, kernel: Any, grid: Any, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Runs a kernel of Triton's."""
        name = kernel.fn.__name__
        for argument in args:
            lies_there = not isinstance(argument, torch.Tensor) or isinstance(argument, CardTensor)
            assert lies_there, f"{name} is given a tensor of the host, {argument}"
        assert isinstance(grid, tuple) and 1 <= len(grid) <= 3 and all(isinstance(n, int) for n in grid), (name, grid)
        assert 0 < grid[0] < 1 << 31 and all(0 < n < 1 << 16 for n in grid[1:]), (name, grid)
        self.launches.append(name)
        self._issued += 1
        key = _compiled_for(kernel, args, options)
        if self.recording is not None:
            assert key in self.compiled.get(name, ()), f"{name} is compiled in a recording"
        self.compiled.setdefault(name, set()).add(key)
        given = _each(args, _numbers_of)
        arguments = SimpleNamespace(**dict(zip(kernel.arg_names, given, strict=True)))

        def run() -> None:
            KERNELS[name](arguments, grid)

        if self.recording is not None:
            self.recording.steps.append(run)
        else:
            with _unseen():
                run()


def _leaves(x: Any) -> Iterator[Any]:
    """What lists and tuples hold in the end."""
    if isinstance(x, list | tuple):
        for each in x:
            yield from _leaves(each)
    else:
        yield x


def _each(x: Any, of: Callable[[Any], Any]) -> Any:
    """The same lists and tuples of something else."""
    return type(x)([_each(each, of) for each in x]) if type(x) in (list, tuple) else of(x)


def _numbers_of(x: Any) -> Any:
    return x.numbers if isinstance(x, CardTensor) else x


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether torch makes the operation of others; in inference mode it asks before it has done so."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _compiled_for(kernel: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What Triton compiles a kernel anew for: dtypes, alignments, constants, and whether a number is 1 or divisible by
    16, unless it is told to take no notice."""
    key: list[Any] = sorted(options.items())
    unnoticed = kernel.kwargs.get("do_not_specialize") or ()
    names = kernel.arg_names
    for name, argument in zip(names, args, strict=False):
        if "constexpr" in str(kernel.fn.__annotations__.get(name, "")):
            key.append((name, argument))
        elif isinstance(argument, CardTensor):
            key.append((name, argument.dtype, argument.numbers.data_ptr() % 16 == 0))
        elif isinstance(argument, int) and not isinstance(argument, bool) and name not in unnoticed:
            key.append((name, argument == 1, argument % 16 == 0, argument.bit_length() > 31))
        else:
            key.append((name, type(argument).__name__))
    return tuple(map(str, key))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1).view(torch.uint8)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(_bytes(a.contiguous()), _bytes(b.contiguous()))


def _poison(x: torch.Tensor) -> None:
    if x.is_floating_point():
        x.fill_(float("nan"))
    elif x.dtype != torch.bool:
        x.fill_(RUBBISH)


# ----------------------------------------------------------------------------------------------------------- torch.cuda


class Graph:
    """`torch.cuda.CUDAGraph`."""

    card: VirtualCard

    def __init__(self) -> None:
        self.steps: list[Callable[[], Any]] = []
        self.ended = False

    def pool(self) -> int:
        assert self.ended, "the pool of a graph that was not recorded"
        return 0

    def replay(self) -> None:
        assert self.ended, "a graph is replayed that was not recorded"
        assert self.card.recording is None
        self.card._issued += len(self.steps)
        self.card.replays += 1
        with _unseen():
            for step in self.steps:
                step()


class Event:
    """`torch.cuda.Event`."""

    card: VirtualCard

    def __init__(self) -> None:
        self._at: int | None = None

    def record(self) -> None:
        assert self.card.recording is None, "an event in a recording"
        self._at = self.card._issued

    def query(self) -> bool:
        assert self._at is not None, "asks for an event that was never recorded"
        return self._at <= self.card._done

    def synchronize(self) -> None:
        assert self._at is not None, "waits for an event that was never recorded"
        self.card.wait("an event", self._at)


@contextlib.contextmanager
def _device_guard() -> Iterator[None]:
    """Before torch looks into a tensor it makes the tensor's device the current one, for which a torch without CUDA has
    nobody to ask. Here it asks the meta device, which has nothing to do."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    cuda, meta = 1, 14  # c10::DeviceType
    guards = (ctypes.c_void_p * (meta + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before, guards[cuda] = guards[cuda], guards[meta]
    assert guards[meta] is not None
    try:
        yield
    finally:
        guards[cuda] = before


class _Calls(TorchFunctionMode):
    """What torch does or refuses before it asks anybody: pinned memory, tensors of lists, and lists of tensors."""

    def __init__(self, card: VirtualCard) -> None:
        self._card = card

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LOOKS and isinstance(args[0], CardTensor):
            if func is torch.Tensor.tolist:
                return args[0].cpu().tolist()
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(x).to(DEVICE) if isinstance(x, list) else x for x in index)
            return func(args[0], index, *args[2:])
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if func is torch.Tensor.pin_memory:
            return self._card.pin(args[0].clone())
        if kwargs.get("pin_memory"):
            return self._card.pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)


_LOOKS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.Tensor.tolist}


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """What is computed here is not the card's doing."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        yield


class _Operations(TorchDispatchMode):
    def __init__(self, card: VirtualCard) -> None:
        super().__init__()
        self._card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        with _unseen():
            return self._card.run(func, args, kwargs)


@contextlib.contextmanager
def absent() -> Iterator[None]:
    """What runs here has nothing to do with the card; only to save time."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextlib.contextmanager
def present(card: VirtualCard) -> Iterator[VirtualCard]:
    """The card is the one that torch has, for this thread."""
    kernels_card._card.cache_clear()
    graphs: type[Graph] = type("CUDAGraph", (Graph,), {"card": card})
    events: type[Event] = type("Event", (Event,), {"card": card})

    @contextlib.contextmanager
    def recorded(graph: Graph, pool: int | None = None, stream: object = None) -> Iterator[None]:
        assert card.recording is None, "a recording in a recording"
        assert not graph.steps and not graph.ended, "a graph is recorded twice"
        card.wait("the beginning of a recording")
        card.recorded_on.append(stream)
        card.recording = graph
        try:
            yield
        finally:
            card.recording = None
        graph.ended = True

    def launching(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: card.launch(kernel, grid, args, options)

    stand_ins: dict[str, Any] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_name": lambda device=None: "a virtual card",
        "get_device_properties": lambda device=None: card.properties,
        "mem_get_info": lambda device=None: (card.free, card.memory),
        "synchronize": lambda device=None: card.wait("synchronize"),
        "Event": events,
        "CUDAGraph": graphs,
        "Stream": lambda device=None: object(),
        "empty_cache": card.give_back,
        "graph": recorded,
    }
    with contextlib.ExitStack() as stack:
        for name, value in stand_ins.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(patch.object(torch.backends.cuda, "preferred_blas_library", lambda library: None))
        stack.enter_context(patch.object(KernelInterface, "__getitem__", launching))
        stack.enter_context(_device_guard())
        stack.enter_context(_Calls(card))
        stack.enter_context(_Operations(card))
        yield card
        card.settle()
        kernels_card._card.cache_clear()
