"""A decoder in ONNX's own operators with a cache of keys and values, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from builders import build, weights

HEADS, SIZE, WIDTH, VOCABULARY, CONTEXT = 2, 8, 16, 24, 64

_TEXT = f"""
    decoder (int64[batch, length] input_ids, float[batch, {HEADS}, past, {SIZE}] past_key,
             float[batch, {HEADS}, past, {SIZE}] past_value)
        => (float[batch, length, {VOCABULARY}] logits, float[batch, {HEADS}, total, {SIZE}] present_key,
            float[batch, {HEADS}, total, {SIZE}] present_value)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] axis = {{3}}, int64[1] start = {{0}},
     int64[1] half = {{{SIZE // 2}}}, int64[1] end = {{{SIZE}}}, int64[4] split = {{0, 0, {HEADS}, {SIZE}}},
     int64[3] merged = {{0, 0, {WIDTH}}}, int64[2] column = {{-1, 1}}, float low = {{-10000}},
     float open = {{0}}> {{
        hidden = Gather (embed, input_ids)
        query_flat = MatMul (hidden, wq)   key_flat = MatMul (hidden, wk)   value_flat = MatMul (hidden, wv)
        query_heads = Reshape (query_flat, split)
        key_heads = Reshape (key_flat, split)
        value_heads = Reshape (value_flat, split)
        query = Transpose <perm = [0, 2, 1, 3]> (query_heads)
        key = Transpose <perm = [0, 2, 1, 3]> (key_heads)
        value = Transpose <perm = [0, 2, 1, 3]> (value_heads)
        past_shape = Shape (past_key)   past = Gather (past_shape, two)
        shape = Shape (input_ids)   length = Gather (shape, one)   total = Add (past, length)
        rows = Range (past, total, one)   columns = Range (zero, total, one)
        angles_cos = Gather (cos, rows)   angles_sin = Gather (sin, rows)
        query_left = Slice (query, start, half, axis)   query_right = Slice (query, half, end, axis)
        query_minus = Neg (query_right)   query_turned = Concat <axis = -1> (query_minus, query_left)
        query_one = Mul (query, angles_cos)   query_two = Mul (query_turned, angles_sin)
        query_rotated = Add (query_one, query_two)
        key_left = Slice (key, start, half, axis)   key_right = Slice (key, half, end, axis)
        key_minus = Neg (key_right)   key_turned = Concat <axis = -1> (key_minus, key_left)
        key_one = Mul (key, angles_cos)   key_two = Mul (key_turned, angles_sin)
        key_rotated = Add (key_one, key_two)
        present_key = Concat <axis = 2> (past_key, key_rotated)
        present_value = Concat <axis = 2> (past_value, value)
        keys = Transpose <perm = [0, 1, 3, 2]> (present_key)
        scores = MatMul (query_rotated, keys)
        rows_column = Reshape (rows, column)   later = Greater (columns, rows_column)
        mask = Where (later, low, open)   masked = Add (scores, mask)
        shares = Softmax <axis = -1> (masked)   mixed = MatMul (shares, present_value)
        mixed_rows = Transpose <perm = [0, 2, 1, 3]> (mixed)   joined = Reshape (mixed_rows, merged)
        projected = MatMul (joined, wo)   sum = Add (hidden, projected)   logits = MatMul (sum, head)
    }}"""


def cached_decoder() -> onnx.ModelProto:
    """Return one layer of attention with rotary positions, whose cache is a Concat."""
    angles = np.arange(CONTEXT)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    angles = np.concatenate([angles, angles], 1)
    square = {name: weights(WIDTH, WIDTH, seed=seed) for seed, name in enumerate(("wq", "wk", "wv", "wo"))}
    turns = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    table, head = weights(VOCABULARY, WIDTH, seed=5), weights(WIDTH, VOCABULARY, seed=6)
    return build(_TEXT, {"embed": table, "head": head, **turns, **square})


def cached_feeds(count: int, length: int = 12) -> list[dict[str, np.ndarray]]:
    """Return texts of random tokens with empty caches."""
    random = np.random.default_rng(3)
    empty = np.zeros((1, HEADS, 0, SIZE), np.float32)
    tokens = (random.integers(0, VOCABULARY, (1, length)) for _ in range(count))
    return [{"input_ids": row, "past_key": empty, "past_value": empty} for row in tokens]
