"""Channel factors that leave a model's function unchanged: which channels share one, which constants fold it."""

from onnxfq.graph.channels.analysis import Analysis, ChannelGroup, Fold, analyze_channels

__all__ = ["Analysis", "ChannelGroup", "Fold", "analyze_channels"]
