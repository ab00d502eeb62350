"""Counts of two engines: one of a Q/DQ model, one of the same graph without pairs.

A build without a GPU tells nothing else about speed. Counts give no time.
"""

from __future__ import annotations

from onnxfq.support.records import Count, Record

KERNELS = 1.1
"""Times the kernels of the other engine from which extra ones have to save bytes."""

SAVED = 64 << 10
"""Bytes of weights that each extra kernel has to save: at 400 GB/s, 0.2 us of a launch."""


class EngineFigures(Record):
    """Counts of one engine.

    Attributes:
        kernels: layers that compute or move data.
        attentions: attentions in one kernel.
        quantizing: kernels that only quantize.
        written: bytes that kernels write, open sizes counted as one.
        weights: bytes of the constants that kernels read.
        floats: the float type that most kernels write.
    """

    kernels: Count
    attentions: Count
    quantizing: Count
    written: Count
    weights: Count
    floats: str


class EngineComparison(Record):
    """Figures of an engine for `device`, and of the one without pairs."""

    device: str
    quantized: EngineFigures
    plain: EngineFigures

    @property
    def sentence(self) -> str:
        """The expectation for one sample that follows from the counts, without milliseconds."""
        ours, plain = self.quantized, self.plain
        more, saved = ours.kernels - plain.kernels, plain.weights - ours.weights
        lost = plain.attentions - ours.attentions
        tail = f"; {lost} attention(s) in one kernel less" if lost > 0 else ""
        if ours.kernels > KERNELS * plain.kernels and saved < SAVED * more:
            rate = f"saves {saved / more / 1024:,.1f} kB of weights" if saved > 0 else "saves no weights"
            return f"expect it to be slower at batch 1: each of {more} kernels more {rate}{tail}"
        count = f"{more} kernels more" if more > 0 else f"{-more} kernels less"
        size = f"{abs(saved) / 2**20:,.2f} MB of weights {'less' if saved >= 0 else 'more'}"
        times = ours.written / max(plain.written, 1)
        wide = f", but {times:.2f} times the bytes written" if times > KERNELS else ""
        said = "the counts disagree" if wide or tail else "the counts do not speak against it"
        return f"{said}: {count}, {size}{wide}{tail}; only the GPU's clock decides"

    def lines(self) -> list[str]:
        """Return the figures side by side, and the sentence that follows from them."""
        pairs = [
            ("kernels", self.quantized.kernels, self.plain.kernels),
            ("attentions in one kernel", self.quantized.attentions, self.plain.attentions),
            ("kernels that only quantize", self.quantized.quantizing, self.plain.quantizing),
            ("bytes written", self.quantized.written, self.plain.written),
            ("bytes of weights read", self.quantized.weights, self.plain.weights),
        ]
        counts = ", ".join(f"{name} {ours:,} / {plain:,}" for name, ours, plain in pairs)
        head = f"against    without pairs, in {self.plain.floats}, on {self.device}: {counts}"
        return [head, f"           {self.sentence}"]
