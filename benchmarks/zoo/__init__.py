"""Where networks come from: `SOURCES`, each with the names it has and how one of them is written as ONNX."""
