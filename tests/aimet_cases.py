"""Calls of AIMET's interface, for AIMET itself (seeds/write_aimet_vectors.py) and for onnxfq."""

from __future__ import annotations

import torch

CASES = [
    {"shape": [5, 2], "bitwidth": 8, "symmetric": False, "block_size": [1, 5], "input": [5, 10]},
    {"shape": [3, 1, 1], "bitwidth": 8, "symmetric": True, "input": [3, 4, 8]},
    {"shape": [4, 2], "bitwidth": 4, "symmetric": False, "block_size": [1, 4], "input": [2, 4, 8]},
    {"shape": [4, 2], "bitwidth": 4, "symmetric": True, "block_size": [-1, -1], "input": [4, 8]},
    {"shape": [], "bitwidth": 2, "symmetric": True, "input": [12]},
    {"shape": [1], "bitwidth": 17, "symmetric": True, "input": [12]},
    {"shape": [], "bitwidth": 20, "symmetric": False, "input": [12]},
    {"shape": [], "qmin": 0, "qmax": 255, "symmetric": True, "input": [12]},
    {"shape": [], "qmin": -7, "qmax": 7, "symmetric": True, "input": [12]},
    {"shape": [], "qmin": 5, "qmax": 20, "symmetric": False, "input": [12]},
    {"shape": [], "bitwidth": 4, "symmetric": True, "zero_point_shift": 0.5, "input": [12]},
    {"shape": [4, 1], "bitwidth": 8, "symmetric": True, "input": [4, 6], "dtype": "float16"},
    {"shape": [], "bitwidth": 4, "symmetric": False, "input": [12], "dtype": "bfloat16"},
    {"shape": [], "bitwidth": 8, "symmetric": False, "input": [12], "dtype": "float64"},
    {"shape": [], "bitwidth": 8, "symmetric": True, "input": [12], "factor": 0.0},
    {"shape": [2], "bitwidth": 8, "symmetric": False, "input": [9, 2], "factor": 1e-9},
    {"shape": [], "bitwidth": 8, "symmetric": False, "input": [12], "shift": 7.0},
    {
        "shape": [],
        "bitwidth": 8,
        "symmetric": True,
        "input": [50],
        "analyzer": "Percentile",
        "percentile": 95,
    },
    {"shape": [3, 1], "bitwidth": 8, "symmetric": False, "input": [3, 24], "analyzer": "Percentile"},
    {"shape": [], "bitwidth": 4, "symmetric": True, "input": [50], "analyzer": "Sqnr"},
    {"shape": [3, 1], "bitwidth": 4, "symmetric": False, "input": [3, 24], "analyzer": "Sqnr"},
    {"shape": [], "bitwidth": 8, "symmetric": False, "input": [50], "analyzer": "TfEnhanced"},
    {"shape": [2, 8], "groups": [1, 8], "symmetric": True, "block_size": [1, 2], "input": [2, 16]},
    {"shape": [2, 8], "groups": [2, -1], "symmetric": True, "block_size": [1, 2], "input": [2, 16]},
    {"class": "Quantize", "shape": [4, 1], "bitwidth": 8, "symmetric": False, "input": [4, 10]},
    {"class": "Quantize", "shape": [], "qmin": -8, "qmax": 7, "symmetric": True, "input": [12]},
]
"""Arguments of a quantizer and of its input; two batches calibrate it, the first one is used afterwards."""

FLOATS = [
    {"exponent_bits": 5, "mantissa_bits": 3},
    {"exponent_bits": 4, "mantissa_bits": 3},
    {"exponent_bits": 3, "mantissa_bits": 4},
    {"exponent_bits": 2, "mantissa_bits": 1, "finite": True, "unsigned_zero": False},
    *({"dtype": name} for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")),
]


def make_input(case, seed):
    """Return the input of a case."""
    x = torch.randn(*case["input"], generator=torch.Generator().manual_seed(seed))
    x = x * case.get("factor", 1.0) + case.get("shift", 0.0)
    return x.to(getattr(torch, case.get("dtype", "float32")))


def make_quantizer(library, case):
    """Return the quantizer of a case, by AIMET or by onnxfq."""
    keywords = {name: tuple(v) if isinstance(v, list) else v for name, v in case.items()}
    taken = ("bitwidth", "qmin", "qmax", "symmetric", "block_size", "zero_point_shift")
    settings = {name: keywords[name] for name in taken if name in keywords}
    if "analyzer" in case:
        analyzer = getattr(library.encoding_analyzer, case["analyzer"] + "EncodingAnalyzer")
        chosen = {} if case["analyzer"] == "TfEnhanced" else {"num_bins": 64}
        chosen |= {"percentile": case["percentile"]} if "percentile" in case else {}
        settings["encoding_analyzer"] = analyzer(keywords["shape"], **chosen)
    affine = library.affine
    if "groups" in case:
        settings |= {"bitwidth": 4, "decompressed_bw": 8, "block_grouping": keywords["groups"]}
        return affine.GroupedBlockQuantizeDequantize(keywords["shape"], **settings)
    return getattr(affine, case.get("class", "QuantizeDequantize"))(keywords["shape"], **settings)


def plain(x):
    """Return the numbers of a tensor, exactly."""
    return x.detach().as_subclass(torch.Tensor).tolist()


def results(library, case, seed):
    """Return everything that a case is compared by."""
    quantizer, x = make_quantizer(library, case), make_input(case, seed)
    found = {}
    with quantizer.compute_encodings():
        found["inside"] = plain(quantizer(x))
        quantizer(make_input(case, seed + 1000) * 1.5)
    x.requires_grad_(True)
    y = quantizer(x)
    weights = torch.arange(y.numel()).reshape(y.shape).to(y.dtype) / y.numel() - 0.3
    y.as_subclass(torch.Tensor).backward(weights)
    found |= {"y": plain(y), "x_gradient": plain(x.grad)}
    found |= {"min_gradient": plain(quantizer.min.grad), "max_gradient": plain(quantizer.max.grad)}
    with torch.no_grad():
        found["without_gradients"] = plain(quantizer(x))
    if "zero_point_shift" not in case and case.get("dtype") != "bfloat16":
        found["integers"] = plain(y.quantize())
        found["values"] = plain(y.quantize().dequantize())
    for name in ("min", "max", "scale", "offset"):
        found["get_" + name] = plain(getattr(quantizer, "get_" + name)())
    return found | {"min": plain(quantizer.min), "max": plain(quantizer.max)}


def call_float(library, case):
    """Return what a float quantizer makes of numbers: without a range, and by the range of data."""
    keywords = dict(case)
    if "dtype" in case:
        keywords["dtype"] = getattr(torch, case["dtype"])
    quantizer = library.float.FloatQuantizeDequantize(**keywords)
    x = torch.tensor([1e9, 0.3, 1.77, -5.3, 400.0, 0.001, -(2.0**-10), 0.0])
    found = [plain(quantizer(x))]
    with quantizer.compute_encodings():
        quantizer(x[1:4])
    return [*found, plain(quantizer(x)), plain(quantizer.get_scale())]


def network(library, modules):
    """Return a calibrated network of quantized modules."""
    torch.manual_seed(0)
    affine = library.affine
    made = torch.nn.Sequential(
        modules.QuantizedConv2d(2, 2, 3),
        torch.nn.ReLU(),
        affine.QuantizeDequantize((2, 1, 1), 8, False),
        torch.nn.Flatten(),
        modules.QuantizedLinear(8, 4),
        library.float.FloatQuantizeDequantize(dtype=torch.float8_e4m3fn),
    )
    made[0].param_quantizers["weight"] = affine.QuantizeDequantize((2, 1, 1, 1), 4, True)
    made[0].input_quantizers[0] = affine.QuantizeDequantize((), 8, False)
    made[4].param_quantizers["weight"] = affine.GroupedBlockQuantizeDequantize(
        (4, 4), 4, True, 8, block_size=(1, 2), block_grouping=(1, -1)
    )
    made[4].output_quantizers[0] = affine.QuantizeDequantize((), -100, 100, True)
    with modules.compute_encodings(made):
        made(torch.randn(4, 2, 4, 4))
    return made


def train(made):
    """Return the loss of ten steps of training."""
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    x, target = torch.randn(4, 2, 4, 4), torch.randn(4, 4)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = ((made(x).as_subclass(torch.Tensor) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
