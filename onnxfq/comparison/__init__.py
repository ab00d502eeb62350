"""The same quantized model in two runtimes: where their numbers part."""
