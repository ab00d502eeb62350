"""What torch's users do with quantized modules, one check each, for each of the four interfaces."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from quantized_modules import made_of, prepared
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune


def inputs(count: int = 6) -> Tensor:
    """Return the same samples at every call."""
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """Float network: a convolution, a branch and a layer."""

    def __init__(self, changed: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.same, self.fc = nn.Conv2d(4, 4, 3, padding=1), changed(nn.Linear(144, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Return four numbers for each image."""
        x = self.norm(self.conv(x)).relu()
        return self.fc((x + self.same(x)).flatten(1))


class Quantized(nn.Module):
    """The same network with quantizers of one library in its forward."""

    def __init__(self, make: Callable[[], nn.Module], changed: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.net = Plain(changed)
        self.first, self.second, self.weight = make(), make(), make()

    def forward(self, x: Tensor) -> Tensor:
        """Return four numbers for each image."""
        x = self.net.norm(self.net.conv(self.first(x))).relu()
        x = self.second((x + self.net.same(x)).flatten(1))
        return F.linear(x, self.weight(self.net.fc.weight), self.net.fc.bias)


def core(changed: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return the network of `quantize_module`, calibrated."""
    model = Plain(changed).eval()
    prepared(model, inputs(), "tensorrt-int8")
    return model


def horizon(changed: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return the network with Horizon's FakeQuantize, after a step of training."""
    from onnxfq.torch.compat.horizon import FakeQuantize

    model = Quantized(FakeQuantize, changed)
    model(inputs())
    return model.eval()


def aimet(changed: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return the network with AIMET's quantizers, calibrated."""
    import onnxfq.torch.compat.aimet as library

    model = Quantized(lambda: library.QuantizeDequantize((1,), 8, True), changed).eval()
    with model.first.compute_encodings(), model.second.compute_encodings(), model.weight.compute_encodings():
        with torch.no_grad():
            model(inputs())
    return model


def nvidia(changed: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return the network with NVIDIA's layers, without calibration: each batch has its own range."""
    from onnxfq.torch.compat import nvidia as library

    model = Plain()
    made = library.QuantLinear(144, 4)
    made.load_state_dict(model.fc.state_dict(), strict=False)
    model.fc = changed(made)
    return model.eval()


Make = Callable[..., nn.Module]
INTERFACES: dict[str, Make] = {"core": core, "horizon": horizon, "aimet": aimet, "nvidia": nvidia}


def same(model: nn.Module, other: Callable[[Tensor], Tensor], tolerance: float = 0.0) -> None:
    """Assert that both give the same numbers, which are those of no float module."""
    with torch.no_grad():
        torch.testing.assert_close(other(inputs()), model(inputs()), rtol=0, atol=tolerance)


def step(model: nn.Module, parameters: Iterator[nn.Parameter] | None = None, call: Any = None) -> None:
    """Train one step, and assert that every trained parameter has moved."""
    trained = list(model.parameters() if parameters is None else parameters)
    before = [p.detach().clone() for p in trained]
    optimizer = torch.optim.Adam(trained, 1e-2)
    (call or model)(inputs()).square().mean().backward()
    optimizer.step()
    moved = [not torch.equal(p.detach(), old) for p, old in zip(trained, before, strict=True)]
    assert any(moved) and all(torch.isfinite(p).all() for p in trained)


def compile_whole(make: Make, folder: Path) -> None:
    """torch.compile(fullgraph=True) gives the numbers and trains. 1e-5: sums in another order."""
    model = make()
    same(model, torch.compile(model, fullgraph=True), 1e-5)


def export(make: Make, folder: Path) -> None:
    """torch.export gives the numbers. 1e-5: sums in another order."""
    model = make()
    same(model, torch.export.export(model, (inputs(),)).module(), 1e-5)


def script(make: Make, folder: Path) -> None:
    """torch.jit.script compiles the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(make())


def pickled(make: Make, folder: Path) -> None:
    """Pickle and torch.save keep the whole module."""
    model = make()
    same(model, pickle.loads(pickle.dumps(model)))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    same(model, read)
    step(read.train())


def state_dicts(make: Make, folder: Path) -> None:
    """A state dict of tensors alone goes through a file into a new module."""
    model, other = make(), make()
    step(model.train())
    torch.save(model.eval().state_dict(), folder / "state.pt")
    other.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    same(model, other.eval())


def copied(make: Make, folder: Path) -> None:
    """Deepcopy is independent of the module."""
    model = make()
    other = copy.deepcopy(model)
    same(model, other)
    step(other.train())
    assert not torch.equal(other.eval()(inputs()), model(inputs()))


def traced(make: Make, folder: Path) -> None:
    """torch.fx.symbolic_trace leaves quantizers as leaves."""
    model = make()
    same(model, torch.fx.symbolic_trace(model))


def replicated(make: Make, folder: Path) -> None:
    """A replica, as DataParallel makes them, writes into the buffers of the module in place."""
    model = make()
    held = {name: id(buffer) for name, buffer in model.named_buffers()}
    same(model, nn.DataParallel(model))
    step(model.train())
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == held


def _answer(model: nn.Module, queue: Any) -> None:
    with torch.no_grad():
        queue.put(model(inputs()).tolist())


def spawned(make: Make, folder: Path) -> None:
    """A spawned process gets the module and gives the numbers."""
    context = torch.multiprocessing.get_context("spawn")
    model, queue = make(), context.Queue()
    process = context.Process(target=_answer, args=(model, queue))
    process.start()
    found = queue.get(timeout=120)
    process.join()
    same(model, lambda x: torch.tensor(found))


def layer_of(model: nn.Module) -> Any:
    """Return the last layer of a network."""
    return model.fc if hasattr(model, "fc") else model.net.fc


def pruned_before(make: Make, folder: Path) -> None:
    """A layer that is pruned before: its zeros stay zeros."""
    model = make(lambda layer: prune.l1_unstructured(layer, "weight", 0.5))
    step(model.train())
    assert float((layer_of(model).weight == 0).float().mean()) >= 0.5


def pruned_after(make: Make, folder: Path) -> None:
    """A layer of the quantized module is pruned, and trains on."""
    model = make()
    layer, before = layer_of(model), model(inputs())
    prune.l1_unstructured(layer, "weight", 0.5)
    assert float((layer.weight == 0).float().mean()) >= 0.5
    assert not torch.equal(model(inputs()), before)
    step(model.train())


def normed_before(make: Make, folder: Path) -> None:
    """weight_norm, a parametrization, before: its parameters train."""
    step(make(parametrizations.weight_norm).train())


def normed_after(make: Make, folder: Path) -> None:
    """weight_norm after: the weight is still quantized."""
    model = make()
    expected = model(inputs())
    parametrizations.weight_norm(layer_of(model))
    torch.testing.assert_close(model(inputs()), expected, rtol=0, atol=1e-5)  # the norm's division


def autocast(make: Make, folder: Path) -> None:
    """Autocast trains in bfloat16, with float32 parameters."""
    model = make().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def checkpointed(make: Make, folder: Path) -> None:
    """torch.utils.checkpoint gives the gradients of the plain pass."""
    from torch.utils.checkpoint import checkpoint

    model = make()
    gradients = []
    for call in (model, functools.partial(checkpoint, model, use_reentrant=False)):
        model.zero_grad()
        call(inputs()).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert gradients[0] and all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@contextmanager
def group(folder: Path) -> Iterator[None]:
    """A group of one process over gloo."""
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60))
    try:
        yield
    finally:
        dist.destroy_process_group()


def distributed(make: Make, folder: Path) -> None:
    """DistributedDataParallel over gloo gives the numbers and trains."""
    with group(folder):
        model = make()
        wrapped = nn.parallel.DistributedDataParallel(model)
        same(model, wrapped)
        step(model.train(), call=wrapped)
        # Its reducer holds the group, whose threads would be waited for with Python's lock held.
        del wrapped
        gc.collect()


def sharded(make: Make, folder: Path) -> None:
    """FSDP2 shards the parameters on the CPU: the numbers stay, and they train."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with group(folder):
        model = make()
        with torch.no_grad():
            expected = model(inputs())
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with torch.no_grad():
            assert torch.equal(model(inputs()), expected)
        model.train()(inputs()).square().mean().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()


def averaged(make: Make, folder: Path) -> None:
    """torch.optim.swa_utils averages the weights and keeps the ranges usable."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = make()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=False)
    average.update_parameters(model)
    step(model.train())
    average.update_parameters(model.eval())
    assert torch.isfinite(average.eval()(inputs())).all()
    assert not torch.equal(average(inputs()), model(inputs()))


def functional(make: Make, folder: Path) -> None:
    """torch.func.functional_call takes other parameters, which are quantized as well."""
    model = make()
    given = {name: p.detach() * 2 for name, p in model.named_parameters()}
    found = torch.func.functional_call(model, given, (inputs(),))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(given[name])
    torch.testing.assert_close(found, other(inputs()), rtol=0, atol=0)


def lightning(make: Make, folder: Path) -> None:
    """Loop like Lightning's over a module around it: it clips gradients, and goes on from checkpoints."""
    model, file = nn.Sequential(make()), folder / "last.ckpt"
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=3)
    for number in range(3):
        model.train()
        loss = model(inputs()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"step": number}, file)
        model.load_state_dict(torch.load(file, weights_only=True)["state_dict"])


def transformers(make: Make, folder: Path) -> None:
    """Loop like transformers': parameter groups by name, accumulation, autocast, dictionaries as outputs."""

    def head(self: Any, pixels: Tensor, labels: Tensor | None = None) -> Mapping[str, Tensor]:
        logits = self.model(pixels)
        loss = logits.mean() if labels is None else F.cross_entropy(logits.float(), labels)
        return {"loss": loss, "logits": logits}

    model = made_of(head, model=make()).train()
    groups = [
        {"params": [p for p in model.parameters() if (p.ndim > 1) == decayed], "weight_decay": 0.1 * decayed}
        for decayed in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    losses = []
    for _ in range(4):
        for part in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(pixels=inputs(), labels=torch.arange(6) % 4)["loss"] / 2
            loss.backward()
            losses += [float(loss.detach())] if part else []
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]


CHECKS: dict[str, Callable[[Make, Path], None]] = {
    "torch.compile(fullgraph=True)": compile_whole,
    "torch.export": export,
    "torch.jit.script": script,
    "pickle, torch.save of the module": pickled,
    "state dict, weights_only": state_dicts,
    "copy.deepcopy": copied,
    "torch.fx.symbolic_trace": traced,
    "DataParallel": replicated,
    "spawned processes": spawned,
    "prune before": pruned_before,
    "prune after": pruned_after,
    "weight_norm before": normed_before,
    "weight_norm after": normed_after,
    "autocast": autocast,
    "torch.utils.checkpoint": checkpointed,
    "DistributedDataParallel": distributed,
    "FSDP2": sharded,
    "moving averages of weights": averaged,
    "functional_call": functional,
    "loop like Lightning's": lightning,
    "loop like transformers'": transformers,
}
