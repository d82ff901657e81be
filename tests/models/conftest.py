"""Random LoRA adapters of tiny checkpoints."""

import pytest
import torch
from transformers import AutoModelForCausalLM


@pytest.fixture
def make_adapter(tmp_path):
    """Give a function that saves a random adapter of a checkpoint; returns its folder and peft's
    own model."""
    peft = pytest.importorskip("peft")

    def make(base, **settings):
        model = AutoModelForCausalLM.from_pretrained(base).eval()
        config = peft.LoraConfig(r=4, lora_alpha=16, task_type="CAUSAL_LM", **settings)
        shell = peft.get_peft_model(model, config).eval()
        torch.manual_seed(1)
        for name, value in shell.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(value)
        shell.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", shell

    return make
