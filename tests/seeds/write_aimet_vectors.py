"""Write aimet_vectors.json: what aimet-torch 2.42 computes. Run it in an environment with aimet-torch.

python tests/seeds/write_aimet_vectors.py
"""

import json
from pathlib import Path

import torch
from aimet_torch.quantization import affine
from aimet_torch.quantization import encoding_analyzer as analyzers
from aimet_torch.quantization import float as floats

CASES = [
    {"shape": [5, 2], "bitwidth": 8, "symmetric": False, "block_size": [1, 5], "input": [5, 10]},
    {"shape": [3, 1, 1], "bitwidth": 8, "symmetric": True, "input": [2, 3, 4, 8]},
    {"shape": [4, 2], "bitwidth": 4, "symmetric": False, "block_size": [1, 4], "input": [2, 3, 4, 8]},
    {"shape": [4, 2], "bitwidth": 4, "symmetric": True, "block_size": [-1, -1], "input": [2, 3, 4, 8]},
    {"shape": [], "bitwidth": 2, "symmetric": True, "input": [40]},
    {"shape": [], "bitwidth": 17, "symmetric": True, "input": [40]},
    {"shape": [], "bitwidth": 20, "symmetric": False, "input": [40]},
    {"shape": [], "qmin": 0, "qmax": 255, "symmetric": True, "input": [40]},
    {"shape": [], "qmin": -7, "qmax": 7, "symmetric": True, "input": [40]},
    {"shape": [], "qmin": 5, "qmax": 20, "symmetric": False, "input": [40]},
    {"shape": [], "bitwidth": 4, "symmetric": True, "zero_point_shift": 0.5, "input": [40]},
]


def make_input(shape, seed):
    """Return what the tests compute too."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def results(quantizer, x, shifted):
    """Return everything that a case is compared by."""
    with quantizer.compute_encodings():
        inside = quantizer(x)
    y = quantizer(x)
    quantizer.zero_grad()
    (y.as_subclass(torch.Tensor) * x).sum().backward()
    return {
        "inside": inside.as_subclass(torch.Tensor).tolist(),
        "y": y.as_subclass(torch.Tensor).tolist(),
        "integers": None if shifted else y.quantize().as_subclass(torch.Tensor).tolist(),
        "min": quantizer.get_min().tolist(),
        "max": quantizer.get_max().tolist(),
        "scale": quantizer.get_scale().tolist(),
        "offset": quantizer.get_offset().tolist(),
        "min_gradient": quantizer.min.grad.tolist(),
        "max_gradient": quantizer.max.grad.tolist(),
    }


def main():
    """Run all cases."""
    found = {"cases": [], "floats": {}}
    for seed, case in enumerate(CASES):
        keywords = {k: tuple(v) if isinstance(v, list) else v for k, v in case.items() if k != "input"}
        quantizer = affine.QuantizeDequantize(**keywords)
        x = make_input(case["input"], seed)
        found["cases"].append({"case": case, "results": results(quantizer, x, "zero_point_shift" in case)})
    analyzer = analyzers.PercentileEncodingAnalyzer(shape=(), num_bins=2048, percentile=99)
    x = make_input([20000], 99)
    for symmetric in (False, True):
        quantizer = affine.QuantizeDequantize((), 8, symmetric, analyzer)
        with quantizer.compute_encodings():
            quantizer(x)
        found[f"percentile_{symmetric}"] = [quantizer.min.item(), quantizer.max.item()]
    lpbq = affine.GroupedBlockQuantizeDequantize(
        (4, 8), 4, True, decompressed_bw=8, block_size=(1, 4), block_grouping=(1, 8)
    )
    with lpbq.compute_encodings():
        lpbq(make_input([4, 32], 50))
    found["lpbq"] = lpbq.get_scale().tolist()
    for exponent, mantissa in ((5, 3), (4, 3), (3, 4)):
        quantizer = floats.FloatQuantizeDequantize(exponent_bits=exponent, mantissa_bits=mantissa)
        values = quantizer(torch.tensor([1e9, 0.3, 1.77, -5.3, 400.0])).as_subclass(torch.Tensor)
        found["floats"][f"{exponent},{mantissa}"] = values.tolist()
    Path(__file__).with_name("aimet_vectors.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
