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


def gemma2(implementation):
    """Softcap, and a sliding window in every other layer."""
    config = transformers.Gemma2Config(**DECODER, sliding_window=5, attn_logit_softcapping=2.0,
                                       query_pre_attn_scalar=1)
    return causal_lm(config, implementation)


def gemma3(implementation):
    """Norms of q and k, and a sliding window in most layers."""
    config = transformers.Gemma3TextConfig(**DECODER, sliding_window=5)
    return causal_lm(config, implementation)


def gpt_oss(implementation):
    """Sinks, and a sliding window in every other layer."""
    config = transformers.GptOssConfig(**DECODER, sliding_window=5, num_local_experts=2,
                                       num_experts_per_tok=1)
    model = causal_lm(config, implementation)
    for layer in model.model.layers:  # initial sinks are too small to have an effect
        torch.nn.init.normal_(layer.self_attn.sinks, mean=1.0)
    return model


def encoder(implementation):
    """Two layers of BERT."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**dict(SIZES, hidden_size=256))
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=implementation)


def logits_of(make, implementation, device, dtype, **inputs):
    model = make(implementation).to(device=device, dtype=dtype).eval()
    tokens = torch.arange(24).reshape(2, 12).to(device)
    with torch.no_grad():
        return model(tokens, **inputs).logits.float().cpu()
