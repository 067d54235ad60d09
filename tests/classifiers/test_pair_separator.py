# SPDX-License-Identifier: Apache-2.0
"""A pair classifier is trained on pairs of which it can see where the first text ends, whatever its base."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from tokenizers.processors import ByteLevel, TemplateProcessing
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.classifiers.conftest import word_pairs
from tests.tiny import (
    save_tiny_causal_lm,
    save_tiny_decoder_classifier,
    save_tiny_embedding_decoder,
    tiny_bert_tokenizer,
    tiny_tokenizer,
)
from trl_diversity.classifiers.cross_encoder_training import (
    CrossEncoderSettings,
    build_cross_encoder,
    save_calibrated,
    train_cross_encoder,
)
from trl_diversity.classifiers.pair_separator import ensure_separator
from trl_diversity.equivalence import CrossEncoderEquivalence
from trl_diversity.equivalence.pair_encoding import PairEncoder


def decoder_tokenizer(single="$A", pair="$A $B"):
    """Pads with `<pad>`; bos and end tokens only as the templates say."""
    tokenizer = tiny_tokenizer(chat_template=None)
    tokens = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<bos>", "<|end|>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    return tokenizer


def pieces(tokenizer, first, second=None):
    return tokenizer.convert_ids_to_tokens(tokenizer(first, second)["input_ids"])


def test_a_token_between_the_texts_and_one_at_the_end():
    tokenizer = decoder_tokenizer()
    first, second = tokenizer.tokenize("a cat"), tokenizer.tokenize("the dog")
    assert pieces(tokenizer, "a cat", "the dog") == [*first, *second]
    ensure_separator(tokenizer)
    assert pieces(tokenizer, "a cat", "the dog") == [*first, "<|end|>", *second, "<|end|>"]
    assert pieces(tokenizer, "a cat") == first
    assert tokenizer.num_special_tokens_to_add(pair=True) == 2


def test_what_the_tokenizer_adds_elsewhere_stays():
    tokenizer = decoder_tokenizer("<bos> $A <bos>", "<bos> $A $B <bos>")
    first, second = tokenizer.tokenize("a cat"), tokenizer.tokenize("the dog")
    ensure_separator(tokenizer)
    assert pieces(tokenizer, "a cat", "the dog") == ["<bos>", *first, "<|end|>", *second, "<bos>"]
    assert pieces(tokenizer, "a cat") == ["<bos>", *first, "<bos>"]


def test_a_byte_level_processor_without_a_template():
    """Qwen's and SmolLM2's tokenizers have one that adds nothing."""
    tokenizer = tiny_tokenizer(chat_template=None)
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=False)
    ensure_separator(tokenizer)
    assert pieces(tokenizer, "a", "a") == ["a", "<|end|>", "a", "<|end|>"]


def test_a_tokenizer_left_cutting_or_padding_is_read_as_it_is_without():
    tokenizer = decoder_tokenizer()
    tokenizer.backend_tokenizer.enable_padding(length=8)
    tokenizer.backend_tokenizer.enable_truncation(1)
    ensure_separator(tokenizer)
    assert pieces(tokenizer, "a", "a") == ["a", "<|end|>", "a", "<|end|>"]


@pytest.mark.parametrize(
    "tokenizer", [tiny_bert_tokenizer(64), decoder_tokenizer("<bos> $A", "<bos> $A <bos> $B")], ids=["bert", "llama"]
)
def test_a_tokenizer_that_separates_is_left_alone(tokenizer):
    before = tokenizer.backend_tokenizer.to_str()
    ensure_separator(tokenizer)
    assert tokenizer.backend_tokenizer.to_str() == before


def test_the_pad_token_is_never_the_separator():
    """A decoder's head takes the token before the padding: a pad token at the end of a pair would hide the pair's."""
    tokenizer = decoder_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    ensure_separator(tokenizer)
    ids = tokenizer("a cat", "the dog")["input_ids"]
    assert tokenizer.pad_token_id not in ids
    assert tokenizer.convert_ids_to_tokens(ids[-1]) == tokenizer.bos_token


def test_without_a_token_to_spare_a_text_separates():
    """GPT-2's tokenizer has one special token for everything."""
    tokenizer = decoder_tokenizer()
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        setattr(tokenizer, name, "<|end|>")
    ensure_separator(tokenizer)
    text = tokenizer.decode(tokenizer("a cat", "the dog")["input_ids"])
    assert text == "a cat\n\n---\n\nthe dog\n\n---\n\n"


def test_a_pad_token_at_the_end_of_every_pair_is_another_one_in_training(tmp_path):
    """Else the head would read the token before it here, and that token itself on a server."""
    base = save_tiny_embedding_decoder(tmp_path)
    used = AutoTokenizer.from_pretrained(base).pad_token_id
    cross_encoder = build_cross_encoder(CrossEncoderSettings(base, use_cpu=True))
    tokenizer = cross_encoder.tokenizer
    ids = tokenizer("the cat", "a dog")["input_ids"]
    assert ids[-1] == used != tokenizer.pad_token_id and tokenizer.pad_token_id not in ids
    assert cross_encoder.config.pad_token_id == tokenizer.pad_token_id
    with torch.no_grad():
        model = cross_encoder.model.eval()
        last = model.score(model.model(torch.tensor([ids])).last_hidden_state[0, -1])
    found = cross_encoder.predict([("the cat", "a dog")], activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(found, last.numpy(), atol=1e-5)


WORDS = st.lists(st.sampled_from(["a", "cat", "dog", "is"]), min_size=1, max_size=4).map(" ".join)
SEPARATED = decoder_tokenizer()
ensure_separator(SEPARATED)


@settings(deadline=None, max_examples=100)
@given(WORDS, WORDS, WORDS, WORDS)
def test_two_pairs_are_the_same_tokens_only_if_they_are_the_same_pair(first, second, third, fourth):
    one, other = SEPARATED(first, second)["input_ids"], SEPARATED(third, fourth)["input_ids"]
    assert (one == other) == ((first, second) == (third, fourth))


@pytest.mark.parametrize("pad_token", [None, "<|end|>"])
def test_the_base_of_a_cross_encoder_gets_it_and_the_checkpoint_keeps_it(tmp_path, pad_token):
    base = save_tiny_decoder_classifier(tmp_path / "base", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = pad_token
    tokenizer.save_pretrained(base)
    cross_encoder = build_cross_encoder(CrossEncoderSettings(base, max_side_tokens=6, use_cpu=True))
    assert cross_encoder.max_seq_length == 14
    save_calibrated(cross_encoder, str(tmp_path / "saved"), 0.5, 1.0)
    kept = AutoTokenizer.from_pretrained(tmp_path / "saved")
    ids = kept("the cat", "a dog")["input_ids"]
    assert ids == cross_encoder.tokenizer("the cat", "a dog")["input_ids"]
    (encoded,) = PairEncoder(kept)([("the cat", "a dog")])
    assert encoded.input_ids == ids
    between = ids[len(kept.tokenize("the cat"))]
    assert between == ids[-1] != kept.pad_token_id


def test_a_trained_decoder_says_the_same_in_transformers_cross_encoder_and_here(tmp_path):
    base = save_tiny_causal_lm(tmp_path / "base")  # with a chat template, and a head for the next token
    dev = word_pairs(24, seed=1)
    adapted = CrossEncoderSettings(base, learning_rate=2e-3, max_side_tokens=32, lora_rank=4, use_cpu=True)
    trained = str(tmp_path / "trained")
    train_cross_encoder(word_pairs(48), dev, trained, adapted)
    texts = [(pair.generation_0, pair.generation_1) for pair in dev]
    equivalence = CrossEncoderEquivalence(trained, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    with torch.no_grad():
        logits = torch.cat([model(**tokenizer(*pair, return_tensors="pt")).logits[:, 0] for pair in texts])
    expected = torch.sigmoid(logits / equivalence.temperature).numpy()
    np.testing.assert_allclose(equivalence.score_pairs(texts), expected, atol=1e-5)
    scores = CrossEncoder(trained, device="cpu").predict(texts, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(scores, logits.numpy(), atol=1e-5)
    assert expected.std() > 1e-3
