"""Channel factors that keep the function of a model: channels that share one, constants that fold it."""

from onnxfq.graph.channels.analysis import Analysis as Analysis
from onnxfq.graph.channels.analysis import Carried as Carried
from onnxfq.graph.channels.analysis import ChannelGroup as ChannelGroup
from onnxfq.graph.channels.analysis import analyze_channels as analyze_channels
from onnxfq.graph.channels.operators import Fold as Fold
