"""Small models of Hugging Face with random weights, always the same ones."""

import torch
import transformers


def decoder(implementation):
    """Two layers of Llama with grouped heads."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=320,
                                      num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=64)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


def encoder(implementation):
    """Two layers of BERT."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=64, hidden_size=256, intermediate_size=320,
                                     num_hidden_layers=2, num_attention_heads=4,
                                     max_position_embeddings=64)
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=implementation)


def logits_of(make, implementation, device, dtype, **inputs):
    model = make(implementation).to(device=device, dtype=dtype).eval()
    tokens = torch.arange(24).reshape(2, 12).to(device)
    with torch.no_grad():
        return model(tokens, **inputs).logits.float().cpu()
