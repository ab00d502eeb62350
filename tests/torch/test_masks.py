"""Masks of attentions in torch modules set no range, as on the ONNX road."""

from __future__ import annotations

import pytest
from onnxruntime import InferenceSession

nn = pytest.importorskip("torch.nn")
pytest.importorskip("onnxscript")

import torch  # noqa: E402  only once it is known to be there
from torch.nn import functional as F  # noqa: E402, N812  torch's own name

from onnxfq.errors import DataError, StatisticsError  # noqa: E402
from onnxfq.torch import compute_encodings, export_torch, quantize_module, quantizers  # noqa: E402

LOWEST = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """Attention with a mask as its users give it; `how` is the form."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.proj = how, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, open_places: torch.Tensor) -> torch.Tensor:
        """Attend to the open places."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
        kept = open_places[:, None, None, :]
        if self.how == "bool":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        elif self.how == "left out":  # as libraries do where nothing is hidden
            hides = torch.compiler.is_exporting() or not kept.all()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=kept if hides else None)
        elif self.how == "causal":  # a mask in an export alone, as libraries give it
            is_exported = torch.compiler.is_exporting()
            mask = torch.ones(length, length, dtype=torch.bool).tril() if is_exported else None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not is_exported)
        elif self.how == "by hand":
            y = (q @ k.mT / 4).masked_fill(~kept, -torch.inf).softmax(-1) @ v
        else:
            low = -torch.inf if self.how == "infinite" else LOWEST
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(kept, 0.0, low))
        return self.proj(y.transpose(1, 2).reshape(batch, length, 32))


def make(how: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the module in evaluation mode, inputs, and which places are open."""
    torch.manual_seed(0)
    module = Attention(how).eval()
    return module, 2 * torch.randn(32, 8, 32), (torch.arange(8) < 5).expand(32, 8)


def sqnr(want: torch.Tensor, got: torch.Tensor) -> float:
    """Return the SQNR in dB."""
    return float(10 * torch.log10(want.square().sum() / (got - want).square().sum()))


@pytest.mark.grid
@pytest.mark.parametrize("hides", [True, False], ids=["hides", "hid nothing"])
@pytest.mark.parametrize("how", ["bool", "left out", "by hand", "lowest", "infinite", "causal"])
def test_masks_hide_and_leave_steps(how: str, hides: bool) -> None:
    """Hidden places stay hidden in torch and in the export, also where calibration hid none."""
    module, x, part = make(how)
    full = torch.ones_like(part)
    want = module(x, part).detach()
    quantize_module(module, "qnn-int8", example_inputs=(x[:2], part[:2]))
    with torch.no_grad(), compute_encodings(module):
        module(x, part if hides else full)
    # Eight bits leave over 25 dB; a mask without effect leaves less than 8.
    assert sqnr(want, module(x, part).detach()) > 20
    exported = export_torch(module, (x[:2], part[:2]))
    feed = dict(zip((i.name for i in exported.graph.input), (x.numpy(), part.numpy()), strict=True))
    assert (
        sqnr(want, torch.from_numpy(InferenceSession(exported.SerializeToString()).run(None, feed)[0])) > 20
    )


def test_rows_without_an_open_place() -> None:
    """Attention gives them 0, as torch does, and no gradient is NaN."""
    module, x, part = make("bool")
    empty = part.clone()
    empty[0] = False
    want = module(x, empty).detach()
    quantize_module(module, "qnn-int8", example_inputs=(x[:2], part[:2]))
    with torch.no_grad(), compute_encodings(module):
        module(x, empty)
    y = module(x, empty)
    y.sum().backward()
    assert sqnr(want[:1], y[:1].detach()) > 20
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


def test_masked_scores_wait_for_all_statistics() -> None:
    """A moving average would take masks for values: training without calibration is one error."""
    module, x, part = make("lowest")
    quantize_module(module.train(), "qnn-int8", example_inputs=(x[:2], part[:2]))
    with pytest.raises(StatisticsError, match="compute_encodings"):
        module(x, part)


def test_example_inputs_that_do_not_fit() -> None:
    """Inputs that forward does not take are one line, and the module is as it was."""
    module, x, part = make("bool")
    for wrong in ((torch.ones(2, 8, 16), torch.ones(2, 8) > 0), (), {"z": torch.ones(1)}):
        with pytest.raises(DataError, match="the forward of Attention does not take these inputs: [A-Z]"):
            quantize_module(module, "tensorrt-int8", example_inputs=wrong)
        assert not quantizers(module)
    quantize_module(module, "tensorrt-int8")
    with pytest.raises(DataError, match="does not take"):
        module(x[..., :16], part)
    with torch.no_grad(), compute_encodings(module):
        module(x, part)
    assert len(quantizers(module)) == 6
