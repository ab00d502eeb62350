"""Networks of transformers, small, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoo.from_torch import Network

TEXT = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
DECODER = TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
HEAD = DECODER | {"head_dim": 16}
OLDER = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
SEQ2SEQ = {
    "vocab_size": 100,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGE = {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"image_size": 32, "patch_size": 8}
SOUND = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
STAGES = {"embedding_size": 16, "hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 1]}
READ = {0: {0: "batch", 1: "length"}, 1: {0: "batch", 1: "length"}}


class Outputs(nn.Module):
    """A model of transformers as a function from tensors to those of its outputs that are named."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], picked: Sequence[Any], fixed: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model, self.names, self.picked, self.fixed = model, names, picked, fixed

    def forward(self, *inputs: Tensor) -> Any:
        """Return the named outputs."""
        made = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed)
        if isinstance(made, Tensor):
            return made
        return tuple(made[name] for name in self.picked)


class WithCache(nn.Module):
    """One step of a decoder: keys and values of before are inputs, those of after are outputs."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, ids: Tensor, mask: Tensor, *past: Tensor) -> Any:
        """Return the logits, then a key and a value for each layer."""
        from transformers import DynamicCache

        pairs = [(past[2 * i], past[2 * i + 1]) for i in range(self.layers)]
        made = self.model(
            input_ids=ids, attention_mask=mask, past_key_values=DynamicCache(pairs), use_cache=True
        )
        cache = made.past_key_values
        return made.logits, *(part for layer in cache.layers for part in (layer.keys, layer.values))


def _words(length: int = 16, most: int = 99) -> Tensor:
    return torch.randint(3, most + 1, (2, length))


def _seen(length: int = 16) -> Tensor:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - 5 :] = 0
    return mask


def _make(kind: str, config: Mapping[str, Any] | str, **nested: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, kind)
    return made(made.config_class(**config, **nested)).eval()


def _text(
    kind: str, fields: Mapping[str, Any], picked: str = "last_hidden_state", **fixed: Any
) -> Callable[[], Network]:
    def make() -> Network:
        model = Outputs(_make(kind, fields), ("input_ids", "attention_mask"), [picked], fixed)
        return Network(model, (_words(), _seen()), READ, {0: (3, 99), 1: (1, 1)})

    return make


def _causal(kind: str, fields: Mapping[str, Any]) -> Callable[[], Network]:
    return _text(kind, fields, "logits", use_cache=False)


def _step(kind: str, fields: Mapping[str, Any], heads: int = 2) -> Callable[[], Network]:
    def make() -> Network:
        past = tuple(torch.randn(2, heads, 7, 16) for _ in range(4))
        axes = {0: {0: "batch"}, 1: {0: "batch", 1: "all"}} | {
            2 + i: {0: "batch", 2: "past"} for i in range(4)
        }
        mask = torch.ones(2, 8, dtype=torch.long)
        return Network(
            WithCache(_make(kind, fields), 2), (_words(1), mask, *past), axes, {0: (3, 99), 1: (1, 1)}
        )

    return make


def _other(
    kind: str,
    fields: Mapping[str, Any],
    inputs: Mapping[str, Callable[[], Tensor]],
    picked: Sequence[Any],
    **fixed: Any,
) -> Callable[[], Network]:
    def make() -> Network:
        return Network(
            Outputs(_make(kind, fields), tuple(inputs), picked, fixed),
            tuple(value() for value in inputs.values()),
        )

    return make


def _text_to_text(kind: str, fields: Mapping[str, Any]) -> Callable[[], Network]:
    inputs = {"input_ids": _words, "attention_mask": _seen, "decoder_input_ids": lambda: _words(8)}
    return _other(kind, fields, inputs, ["logits"], use_cache=False)


def _part(
    make_whole: Callable[[], nn.Module],
    part: str,
    inputs: Mapping[str, Callable[[], Tensor]],
    picked: Sequence[Any],
    **fixed: Any,
) -> Callable[[], Network]:
    def make() -> Network:
        return Network(
            Outputs(getattr(make_whole(), part).eval(), tuple(inputs), picked, fixed),
            tuple(value() for value in inputs.values()),
        )

    return make


def _pixels(size: int = 32, batch: int = 2) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, 3, size, size)


def _config(kind: str, **fields: Any) -> Any:
    import transformers

    return getattr(transformers, kind)(**fields)


def _detector(kind: str, config: str, **fields: Any) -> Callable[[], Network]:
    def make() -> Network:
        import transformers

        backbone = transformers.ResNetConfig(**STAGES, out_features=fields.pop("out_features", ["stage4"]))
        whole = getattr(transformers, kind)(getattr(transformers, config)(backbone_config=backbone, **fields))
        return Network(
            Outputs(whole.eval(), ("pixel_values",), ("logits", "pred_boxes"), {}),
            (torch.randn(1, 3, 64, 64),),
        )

    return make


DETR = dict(
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    num_queries=10,
)


def _sam() -> nn.Module:
    vision = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8)
    vision |= dict(window_size=4, global_attn_indexes=[1], output_channels=32, num_pos_feats=16, mlp_dim=128)
    mask = dict(hidden_size=32, mlp_dim=64, num_attention_heads=4, iou_head_hidden_dim=32)
    prompt = dict(hidden_size=32, image_size=64, patch_size=8, mask_input_channels=8)
    return _make(
        "SamModel", dict(vision_config=vision, mask_decoder_config=mask, prompt_encoder_config=prompt)
    )


class SamMasks(nn.Module):
    """The half of SAM that is run for each click: an embedding of the image and points to masks."""

    def __init__(self) -> None:
        super().__init__()
        self.sam = _sam()

    def forward(self, embedding: Tensor, points: Tensor) -> Any:
        """Return the masks and how good they are."""
        labels = torch.ones(points.shape[:3], dtype=torch.int)
        made = self.sam(
            image_embeddings=embedding, input_points=points, input_labels=labels, multimask_output=True
        )
        return made.pred_masks, made.iou_scores


NETWORKS: dict[str, Callable[[], Network]] = {
    "bert": _text("BertModel", TEXT),
    "roberta": _text("RobertaModel", TEXT),
    "vit": _other("ViTModel", IMAGE, {"pixel_values": _pixels()}, ["last_hidden_state"]),
    "llama": _causal("LlamaForCausalLM", DECODER),
    "mistral": _causal("MistralForCausalLM", DECODER | {"sliding_window": 8}),
    "gpt_neox": _causal("GPTNeoXForCausalLM", TEXT),
    "albert": _text("AlbertModel", TEXT | {"embedding_size": 32}),
    "distilbert": _text(
        "DistilBertModel", {"vocab_size": 100, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    ),
    "mpnet": _text("MPNetModel", TEXT),
    "modernbert": _text("ModernBertModel", TEXT | {"pad_token_id": 0, "global_attn_every_n_layers": 2}),
    "mobilebert": _text(
        "MobileBertModel",
        TEXT
        | {
            "intermediate_size": 64,
            "embedding_size": 32,
            "intra_bottleneck_size": 32,
            "true_hidden_size": 32,
        },
    ),
    "convbert": _text("ConvBertModel", TEXT | {"embedding_size": 64, "head_ratio": 2}),
    "xlnet": _text(
        "XLNetModel", {"vocab_size": 100, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}
    ),
    "layoutlm": _text("LayoutLMModel", TEXT),
    "funnel": _text(
        "FunnelBaseModel",
        {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128},
    ),
    "bigbird": _text("BigBirdModel", TEXT | {"attention_type": "original_full"}),
    "roformer": _text("RoFormerModel", TEXT | {"embedding_size": 64, "max_position_embeddings": 64}),
    "gpt2": _causal("GPT2LMHeadModel", OLDER),
    "gpt2_step": _step("GPT2LMHeadModel", OLDER, 4),
    "gptj": _causal("GPTJForCausalLM", OLDER | {"rotary_dim": 8}),
    "codegen": _causal("CodeGenForCausalLM", OLDER | {"rotary_dim": 8}),
    "opt": _causal(
        "OPTForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 128,
        }
        | {"word_embed_proj_dim": 64, "pad_token_id": 1},
    ),
    "bloom": _causal("BloomForCausalLM", {"vocab_size": 100, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": _causal(
        "FalconForCausalLM",
        {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "mpt": _causal("MptForCausalLM", {"vocab_size": 100, "d_model": 64, "n_heads": 4, "n_layers": 2}),
    "llama_step": _step("LlamaForCausalLM", HEAD),
    "qwen2": _causal("Qwen2ForCausalLM", DECODER),
    "qwen2_step": _step("Qwen2ForCausalLM", HEAD),
    "qwen2_moe": _causal(
        "Qwen2MoeForCausalLM",
        DECODER | {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
    "gemma2": _causal("Gemma2ForCausalLM", HEAD),
    "phi3": _causal("Phi3ForCausalLM", DECODER),
    "mixtral": _causal("MixtralForCausalLM", DECODER | {"num_local_experts": 4}),
    "olmoe": _causal("OlmoeForCausalLM", DECODER | {"num_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": _causal("GptOssForCausalLM", HEAD | {"num_local_experts": 4}),
    "deepseek_v3": _causal(
        "DeepseekV3ForCausalLM",
        DECODER
        | {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
        }
        | {"v_head_dim": 16, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"n_group": 2, "topk_group": 1, "moe_intermediate_size": 32},
    ),
    "cohere": _causal("CohereForCausalLM", DECODER),
    "stablelm": _causal("StableLmForCausalLM", DECODER),
    "starcoder2": _causal("Starcoder2ForCausalLM", DECODER),
    "granite": _causal("GraniteForCausalLM", DECODER),
    "nemotron": _causal("NemotronForCausalLM", DECODER),
    "glm4": _causal("Glm4ForCausalLM", HEAD),
    "lfm2": _causal("Lfm2ForCausalLM", DECODER | {"layer_types": ["conv", "full_attention"]}),
    "mamba": _causal(
        "MambaForCausalLM", {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
    ),
    "mamba2": _causal(
        "Mamba2ForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 16,
        }
        | {"n_groups": 2, "chunk_size": 8},
    ),
    "rwkv": _other(
        "RwkvForCausalLM",
        {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 16},
        {"input_ids": _words},
        ["logits"],
        use_cache=False,
    ),
    "t5": _text_to_text(
        "T5ForConditionalGeneration",
        {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    ),
    "bart": _text_to_text("BartForConditionalGeneration", SEQ2SEQ),
    "marian": _text_to_text("MarianMTModel", SEQ2SEQ),
    "m2m100": _text_to_text("M2M100ForConditionalGeneration", SEQ2SEQ),
    "whisper": _other(
        "WhisperForConditionalGeneration",
        SEQ2SEQ | {"max_source_positions": 50, "num_mel_bins": 20},
        {"input_features": lambda: torch.randn(2, 20, 100), "decoder_input_ids": lambda: _words(8)},
        ["logits"],
        use_cache=False,
    ),
    "speech_to_text": _other(
        "Speech2TextForConditionalGeneration",
        SEQ2SEQ
        | {
            "input_feat_per_channel": 20,
            "conv_channels": 32,
            "max_source_positions": 100,
            "max_target_positions": 32,
        },
        {"input_features": lambda: torch.randn(2, 80, 20), "decoder_input_ids": lambda: _words(8)},
        ["logits"],
        use_cache=False,
    ),
    "wav2vec2_ctc": _other(
        "Wav2Vec2ForCTC",
        SOUND | {"vocab_size": 40},
        {"input_values": lambda: torch.randn(2, 1600)},
        ["logits"],
    ),
    "wav2vec2_conformer": _other(
        "Wav2Vec2ConformerModel",
        SOUND | {"position_embeddings_type": "rotary"},
        {"input_values": lambda: torch.randn(2, 1600)},
        ["last_hidden_state"],
    ),
    "wavlm": _other(
        "WavLMModel", SOUND, {"input_values": lambda: torch.randn(2, 1600)}, ["last_hidden_state"]
    ),
    "audio_spectrogram": _other(
        "ASTModel",
        {k: v for k, v in TEXT.items() if k != "vocab_size"} | {"max_length": 64, "num_mel_bins": 32},
        {"input_values": lambda: torch.randn(2, 64, 32)},
        ["last_hidden_state"],
    ),
    "hifigan": _other(
        "SpeechT5HifiGan",
        {"model_in_dim": 20, "upsample_initial_channel": 64},
        {"spectrogram": lambda: torch.randn(2, 12, 20)},
        [0],
    ),
    "encodec": _part(
        lambda: _make(
            "EncodecModel",
            {
                "num_filters": 8,
                "hidden_size": 32,
                "codebook_size": 64,
                "codebook_dim": 32,
                "num_residual_layers": 1,
            },
        ),
        "encoder",
        {"hidden_states": lambda: torch.randn(1, 1, 640)},
        [0],
    ),
    "encodec_decoder": _part(
        lambda: _make(
            "EncodecModel",
            {
                "num_filters": 8,
                "hidden_size": 32,
                "codebook_size": 64,
                "codebook_dim": 32,
                "num_residual_layers": 1,
            },
        ),
        "decoder",
        {"hidden_states": lambda: torch.randn(1, 32, 8)},
        [0],
    ),
    "clip": _other(
        "CLIPModel",
        {"text_config": TEXT | {"max_position_embeddings": 16, "eos_token_id": 99}, "vision_config": IMAGE},
        {"input_ids": _words, "pixel_values": _pixels(), "attention_mask": _seen},
        ["logits_per_image"],
    ),
    "blip": _other(
        "BlipForImageTextRetrieval",
        {
            "text_config": TEXT | {"encoder_hidden_size": 64, "bos_token_id": 1, "sep_token_id": 2},
            "vision_config": IMAGE,
        },
        {"input_ids": _words, "pixel_values": _pixels(), "attention_mask": _seen},
        ["itm_score"],
    ),
    "owlvit": _other(
        "OwlViTForObjectDetection",
        {"text_config": TEXT | {"max_position_embeddings": 16}, "vision_config": IMAGE, "projection_dim": 64},
        {"input_ids": _words, "pixel_values": _pixels(), "attention_mask": _seen},
        ["logits", "pred_boxes"],
    ),
    "dinov2": _other("Dinov2Model", IMAGE, {"pixel_values": _pixels()}, ["last_hidden_state"]),
    "dinov3": _other("DINOv3ViTModel", IMAGE, {"pixel_values": _pixels()}, ["last_hidden_state"]),
    "donut_swin": _other(
        "DonutSwinModel",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        {"pixel_values": _pixels()},
        ["last_hidden_state"],
    ),
    "segformer": _other(
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 8]}
        | {"decoder_hidden_size": 32},
        {"pixel_values": _pixels(64)},
        ["logits"],
    ),
    "upernet": _other(
        "UperNetForSemanticSegmentation", {"hidden_size": 32}, {"pixel_values": _pixels(64)}, ["logits"]
    ),
    "dpt": _other(
        "DPTForDepthEstimation",
        {k: v for k, v in TEXT.items() if k != "vocab_size"}
        | {"num_hidden_layers": 4, "image_size": 64, "patch_size": 16, "backbone_out_indices": [0, 1, 2, 3]}
        | {"neck_hidden_sizes": [16, 32, 48, 64], "fusion_hidden_size": 32},
        {"pixel_values": _pixels(64, 1)},
        ["predicted_depth"],
    ),
    "glpn": _other(
        "GLPNForDepthEstimation",
        {
            "hidden_sizes": [16, 32, 40, 64],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 8],
            "decoder_hidden_size": 32,
        },
        {"pixel_values": _pixels(64)},
        ["predicted_depth"],
    ),
    "superpoint": _other(
        "SuperPointForKeypointDetection",
        {"encoder_hidden_sizes": [16, 16, 32, 32], "decoder_hidden_size": 32, "descriptor_decoder_dim": 32},
        {"pixel_values": lambda: torch.rand(1, 3, 64, 64)},
        ["scores"],
    ),
    "videomae": _other(
        "VideoMAEModel",
        IMAGE | {"num_frames": 4},
        {"pixel_values": lambda: torch.randn(1, 4, 3, 32, 32)},
        ["last_hidden_state"],
    ),
    "timesformer": _other(
        "TimesformerModel",
        IMAGE | {"num_frames": 4},
        {"pixel_values": lambda: torch.randn(1, 4, 3, 32, 32)},
        ["last_hidden_state"],
    ),
    "patch_tst": _other(
        "PatchTSTForPrediction",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "prediction_length": 8,
            "patch_length": 8,
            "patch_stride": 4,
        }
        | {"d_model": 32, "num_attention_heads": 4, "ffn_dim": 64, "num_hidden_layers": 2},
        {"past_values": lambda: torch.randn(2, 32, 3)},
        ["prediction_outputs"],
    ),
    "detr": _detector("DetrForObjectDetection", "DetrConfig", **DETR),
    "conditional_detr": _detector("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", **DETR),
    "rt_detr": _other(
        "RTDetrForObjectDetection",
        {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [32, 40, 64], "encoder_ffn_dim": 64}
        | {"num_queries": 10, "decoder_layers": 2, "decoder_ffn_dim": 64, "decoder_attention_heads": 4}
        | {
            "encoder_attention_heads": 4,
            "decoder_in_channels": [32, 32, 32],
            "num_denoising": 0,
            "anchor_image_size": None,
        }
        | {
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "layer_type": "basic",
                **STAGES,
                "out_features": ["stage2", "stage3", "stage4"],
            }
        },
        {"pixel_values": _pixels(64, 1)},
        ["logits", "pred_boxes"],
    ),
    "mask2former": _other(
        "Mask2FormerForUniversalSegmentation",
        {
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 64,
            "encoder_layers": 1,
        }
        | {"decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 64, "num_queries": 6}
        | {
            "backbone_config": {
                "model_type": "swin",
                "image_size": 64,
                "embed_dim": 16,
                "depths": [1, 1, 1, 1],
                "num_heads": [2, 2, 4, 4],
                "window_size": 4,
                "out_features": ["stage1", "stage2", "stage3", "stage4"],
            }
        },
        {"pixel_values": _pixels(64, 1)},
        ["class_queries_logits", "masks_queries_logits"],
    ),
    "sam_encoder": _part(_sam, "vision_encoder", {"pixel_values": _pixels(64, 1)}, ["last_hidden_state"]),
    "sam_masks": lambda: Network(SamMasks(), (torch.randn(1, 32, 8, 8), torch.rand(1, 1, 2, 2) * 60)),
}
