"""The folder that goes to the machine with the GPU: model, shapes, commands, samples, findings."""
