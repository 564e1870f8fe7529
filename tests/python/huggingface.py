# SPDX-License-Identifier: Apache-2.0
"""Small Hugging Face models with fixed random weights."""

import torch
import transformers

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=80, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=64)
DECODER = dict(SIZES, num_key_value_heads=2, head_dim=16, pad_token_id=0)


def causal_lm(config, implementation):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


def decoder(implementation):
    """Two layers of Llama with grouped heads."""
    config = transformers.LlamaConfig(**dict(DECODER, hidden_size=256, head_dim=64))
    return causal_lm(config, implementation)


def mistral(implementation):
    """A sliding window that is shorter than the sequence."""
    return causal_lm(transformers.MistralConfig(**DECODER, sliding_window=5), implementation)


def qwen3(implementation):
    """Norms of q and k."""
    return causal_lm(transformers.Qwen3Config(**DECODER), implementation)


def gemma2(implementation):
    """Softcap, and a sliding window in every other layer."""
    config = transformers.Gemma2Config(**DECODER, sliding_window=5, attn_logit_softcapping=2.0,
                                       query_pre_attn_scalar=1)
    return causal_lm(config, implementation)


def gemma3(implementation):
    """Norms of q and k, and a sliding window in every other layer."""
    config = transformers.Gemma3TextConfig(**DECODER, sliding_window=5,
                                           layer_types=["sliding_attention", "full_attention"])
    return causal_lm(config, implementation)


def gemma_wide(implementation):
    """Heads of 512 columns, as the global layers of the latest Gemma have them."""
    config = transformers.Gemma3TextConfig(**dict(DECODER, head_dim=512), sliding_window=5,
                                           layer_types=["sliding_attention", "full_attention"])
    return causal_lm(config, implementation)


def gpt_oss(implementation):
    """Sinks, and a sliding window in every other layer."""
    config = transformers.GptOssConfig(**DECODER, sliding_window=5, num_local_experts=2,
                                       num_experts_per_tok=1)
    model = causal_lm(config, implementation)
    for layer in model.model.layers:  # initial sinks are too small to have an effect
        torch.nn.init.normal_(layer.self_attn.sinks, mean=1.0)
    return model


def llama4(implementation):
    """Attention within chunks of five tokens in one of two layers."""
    config = transformers.Llama4TextConfig(
        **DECODER, attention_chunk_size=5, num_local_experts=2, intermediate_size_mlp=80,
        layer_types=["chunked_attention", "full_attention"], moe_layers=[])
    return causal_lm(config, implementation)


def bloom(implementation):
    """ALiBi in the model's own code."""
    config = transformers.BloomConfig(vocab_size=64, hidden_size=64, n_layer=2, n_head=4, pad_token_id=0)
    return causal_lm(config, implementation)


def mpt(implementation):
    """ALiBi in the model's own code."""
    config = transformers.MptConfig(vocab_size=64, d_model=64, n_layers=2, n_heads=4, max_seq_len=64)
    return causal_lm(config, implementation)


def encoder(implementation):
    """Two layers of BERT."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**dict(SIZES, hidden_size=256))
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=implementation)


def modern_bert(implementation):
    """A window on both sides in one of two layers."""
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(**SIZES, local_attention=6, global_attn_every_n_layers=2,
                                           pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                           sep_token_id=2)
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=implementation)


def t5(implementation):
    """A learned bias of relative positions in the encoder and the decoder."""
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=80, num_layers=2, num_heads=4,
                                   decoder_start_token_id=0, relative_attention_num_buckets=8,
                                   relative_attention_max_distance=12)
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=implementation)
    for name, weight in model.named_parameters():
        if "relative_attention_bias" in name:  # initial ones are small
            torch.nn.init.normal_(weight)
    return model


def whisper(implementation):
    """An encoder of audio and a decoder with cross-attention."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=80, decoder_ffn_dim=80,
        max_source_positions=20, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=63,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None)
    return transformers.WhisperForConditionalGeneration._from_config(
        config, attn_implementation=implementation)


def vit(implementation):
    """Two layers of ViT."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                    intermediate_size=80, image_size=16, patch_size=4, num_labels=5)
    return transformers.ViTForImageClassification._from_config(config, attn_implementation=implementation)


def logits_of(make, implementation, device, dtype, **inputs):
    model = make(implementation).to(device=device, dtype=dtype).eval()
    tokens = torch.arange(24).reshape(2, 12).to(device)
    with torch.no_grad():
        return model(tokens, **inputs).logits.float().cpu()
