"""Channel factors that keep the function of a model: channels that share one, constants that fold it."""

from onnxfq.graph.channels.analysis import Analysis, Carried, ChannelGroup, analyze_channels
from onnxfq.graph.channels.operators import Fold

__all__ = ["Analysis", "Carried", "ChannelGroup", "Fold", "analyze_channels"]
