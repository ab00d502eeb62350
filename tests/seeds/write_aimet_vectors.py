"""Write aimet_vectors.json: what aimet-torch 2.42 computes. Run it in an environment with aimet-torch.

python tests/seeds/write_aimet_vectors.py
"""

import json
import sys
from pathlib import Path

import torch
from aimet_torch import nn as quantized
from aimet_torch import quantization

sys.path.insert(0, str(Path(__file__).parents[1]))
from aimet_cases import CASES, FLOATS, call_float, network, results, train


def names(library):
    """Return AIMET's public names of its modules, and of their classes in addition to torch's."""
    common = {*dir(torch.nn.Module), *dir(torch.Tensor), *dir(object)}
    found = set()
    for home in ("affine", "float", "tensor", "encoding_analyzer"):
        for name, thing in vars(getattr(library, home)).items():
            if name.startswith("_") or not getattr(thing, "__module__", "").startswith("aimet_torch"):
                continue
            members = [one for one in dir(thing) if one[0] != "_" and one not in common]
            found |= {
                f"{home}.{name}",
                *(f"{home}.{name}.{one}" for one in members if isinstance(thing, type)),
            }
    return sorted(found)


def main():
    """Run all cases."""
    torch.set_num_threads(1)
    made = network(quantization, quantized)
    found = {
        "cases": [results(quantization, case, seed) for seed, case in enumerate(CASES)],
        "floats": [call_float(quantization, case) for case in FLOATS],
        "state": {
            name: {key: [str(one.dtype), one.tolist()] for key, one in value.items()}
            if isinstance(value, dict)
            else [str(value.dtype), value.tolist()]
            for name, value in made.state_dict().items()
        },
        "trained": train(made),
        "names": names(quantization),
        "layers": [name for name in dir(quantized) if name.startswith("Quantized")],
        "mixin": [name for name in dir(quantized.QuantizationMixin) if name[0] != "_"],
    }
    Path(__file__).with_name("aimet_vectors.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
