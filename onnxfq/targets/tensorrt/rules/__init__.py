"""Rules of TensorRT that a Q/DQ model is checked against, by idea."""
