# SPDX-License-Identifier: Apache-2.0
"""Answers are found in token ids: hard completions, each with its outcome."""

import pytest

from tests import tiny
from tests.likelihood import tokenizers
from trl_diversity.likelihood.answer_span import answer_finder, assistant_tail, find_answer
from trl_diversity.likelihood.token_text import decode


TOKENIZERS = {**tokenizers.EXACT, "metaspace_unigram": tokenizers.metaspace_unigram}
THINK_PROMPT = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n"
NO_THINK_PROMPT = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

# name: (answer format, prompt, completion, answer, text before the answer, what follows a splice)
WELL_FORMED = {
    "r1": ("tags", "", "<think>x</think>\n<answer>42</answer>", "42", "<think>x</think>\n<answer>", "</answer>"),
    "no think block": ("tags", "", "<answer>olleh</answer>", "olleh", "<answer>", "</answer>"),  # FC-037
    "end of text": ("tags", "", "<answer>42</answer><|im_end|>", "42", "<answer>", "</answer>"),
    "text after it": ("tags", "", "<answer>42</answer> so <b>", "42", "<answer>", "</answer>"),
    "white space": ("tags", "", "<answer>\n 42 \n</answer>", "42", "<answer>\n ", " \n</answer>"),
    "space glued": ("tags", "", "x <answer> 7</answer>", "7", "x <answer> ", "</answer>"),
    "sign glued": ("tags", "", "<answer>>5</answer>", ">5", "<answer>", "</answer>"),
    "text glued to the tag": ("tags", "", "so<answer>a</answer>b", "a", "so<answer>", "</answer>"),
    "a tag in the answer": ("tags", "", "<answer><b>yes</b></answer>", "<b>yes</b>", "<answer>", "</answer>"),
    "two lines": ("tags", "", "<answer>a\nb</answer>", "a\nb", "<answer>", "</answer>"),
    "latex": ("tags", "", "<answer>\\frac{1}{2}</answer>", "\\frac{1}{2}", "<answer>", "</answer>"),
    "japanese": ("tags", "", "日本の首都は<answer>東京</answer>です", "東京", "日本の首都は<answer>", "</answer>"),
    "emoji": ("tags", "", "🙂<answer>👩‍🔬</answer>🙂", "👩‍🔬", "🙂<answer>", "</answer>"),
    "accents": ("tags", "", "<answer>café naïve</answer>", "café naïve", "<answer>", "</answer>"),
    "answer inside open thinking": ("tags", "", "<think>a<answer>7</answer>", "7", "<think>a<answer>", "</answer>"),
    "not closed": ("tags", "", "<think>x</think><answer>7", "7", "<think>x</think><answer>", "</answer>"),  # FC-101
    "end marker written out": ("tags", "", "x<answer>7<|endoftext|>", "7", "x<answer>", "</answer>"),  # FC-101
    "end marker, then more": ("tags", "", "<answer>7<|im_end|>\n<answer>8</answer>", "7", "<answer>", "</answer>"),
    "end marker, then the tag": ("tags", "", "<answer>7<|endoftext|></answer>", "7", "<answer>", "</answer>"),
    "cut inside the tag": ("tags", "", "<answer>7</ans", "7", "<answer>", "</answer>"),
    "ends with less than": ("tags", "", "<answer>x <", "x <", "<answer>", "</answer>"),
    "think in the prompt": ("tags", THINK_PROMPT, "a.\n</think>\n<answer>4</answer>", "4",
                            "a.\n</think>\n<answer>", "</answer>"),  # FC-036
    "answer opened by the prompt": ("tags", "Q <answer>", " 4</answer>", "4", " ", "</answer>"),
    "example tags in the prompt": ("tags", "use <answer>x</answer>", "<answer>4</answer>", "4", "<answer>",
                                   "</answer>"),
    "box": ("boxed", "", "so \\boxed{42}.", "42", "so \\boxed{", "}"),
    "nested box": ("boxed", "", "$\\boxed{\\frac{1}{2}}$", "\\frac{1}{2}", "$\\boxed{", "}"),
    "last box": ("boxed", "", "\\boxed{1} no \\boxed{2}", "2", "\\boxed{1} no \\boxed{", "}"),
    "last closed box": ("boxed", "", "\\boxed{1} then \\boxed{2", "1", "\\boxed{", "}"),
    "escaped brace": ("boxed", "", "\\boxed{\\{1, 2\\}} \\}", "\\{1, 2\\}", "\\boxed{", "}"),
    "lone escaped brace": ("boxed", "", "\\boxed{\\}}", "\\}", "\\boxed{", "}"),
    "white space in a box": ("boxed", "", "\\boxed { 42 }", "42", "\\boxed { ", " }"),
    "box in a box": ("boxed", "", "\\boxed{\\boxed{5}}", "5", "\\boxed{\\boxed{", "}"),
    "after think": ("after_think", "", "<think>x</think>\n\nIt is 4.\n<|im_end|>", "It is 4.",
                    "<think>x</think>\n\n", "\n"),
    "after think of the prompt": ("after_think", THINK_PROMPT, "x</think>4", "4", "x</think>", ""),
    "think block closed by the prompt": ("after_think", NO_THINK_PROMPT, "It is 4.", "It is 4.", "", ""),
    "pattern": (r"Answer: (.+)", "", "x\nAnswer: 42\nbye", "42", "x\nAnswer: ", ""),
    "named group": (r"(a|b)=(?P<answer>\d+);", "", "a=1;b=22;", "22", "a=1;b=", ";"),
    "pattern at the end": (r"Answer: (.+)$", "", "Answer: 42<|im_end|>", "42", "Answer: ", ""),
}  # fmt: skip

# name: (answer format, prompt, completion, reason)
MALFORMED = {
    "nothing": ("tags", "", "", "no_tag"),
    "no tags": ("tags", "", "It is 4.", "no_tag"),
    "never stops thinking": ("tags", "", "<think>never ends ...", "truncated"),  # FC-101
    "never stops the prompt's thinking": ("tags", THINK_PROMPT, "never ends ...", "truncated"),
    "tags in the prompt only": ("tags", "use <answer>x</answer>", "4", "no_tag"),
    "half an opening tag": ("tags", "", "x <answ", "no_tag"),
    "closing tag only": ("tags", "", "4</answer>", "no_tag"),
    "two answers": ("tags", "", "<answer>1</answer><answer>2</answer>", "several"),
    "opened twice": ("tags", "", "<answer><answer>1</answer>", "several"),
    "closed twice": ("tags", "", "<answer>1</answer></answer>", "several"),
    "answer in the thinking too": ("tags", "", "<think><answer>1</answer></think><answer>2</answer>", "several"),
    "wrong order": ("tags", "", "</answer>7<answer>", "order"),
    "empty": ("tags", "", "<answer></answer>", "empty"),
    "white space only": ("tags", "", "<answer> \n </answer>", "empty"),
    "cut after the opening tag": ("tags", "", "<think>x</think><answer>", "empty"),
    "end marker at once": ("tags", "", "<answer><|im_end|>", "empty"),
    "no box": ("boxed", "", "42", "no_tag"),
    "box not closed": ("boxed", "", "\\boxed{\\frac{1}{2}", "truncated"),
    "empty box": ("boxed", "", "\\boxed{1} \\boxed{}", "empty"),
    "no thinking": ("after_think", "", "It is 4.", "no_tag"),
    "thinks for ever": ("after_think", THINK_PROMPT, "It is", "truncated"),
    "thinks twice": ("after_think", "", "<think>a</think>b</think>c", "several"),
    "nothing after thinking": ("after_think", "", "<think>a</think>\n<|im_end|>", "empty"),
    "no match": (r"Answer: (.+)", "", "42", "no_tag"),
    "group takes no part": (r"Answer: (?:(\d+)|none)", "", "Answer: none", "no_tag"),
}


def find(tokenizer, answer_format, prompt, completion):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    # A completion continues its prompt: its first token gets no space that it does not have.
    lead = "" if not prompt else prompt
    together, alone = ids(lead + completion), ids(lead)
    completion_ids = together[len(alone) :] if together[: len(alone)] == alone else ids(completion)
    return completion_ids, find_answer(completion_ids, tokenizer, answer_format, prompt_ids=alone)


@pytest.mark.parametrize("make", tokenizers.EXACT.values(), ids=tokenizers.EXACT)
@pytest.mark.parametrize("case", WELL_FORMED)
def test_answers(case, make):
    answer_format, prompt, completion, answer, before, closing = WELL_FORMED[case]
    tokenizer = make()
    ids, span = find(tokenizer, answer_format, prompt, completion)
    assert (span.malformed, span.answer) == (None, answer)
    assert (decode(span.prefix_ids, tokenizer) + span.joining).strip() == before.strip()
    assert span.closing == closing
    # The sampled ids are kept, and the answer's ids follow the prefix.
    taken = len(span.prefix_ids) + len(span.answer_ids)
    assert (*span.prefix_ids, *span.answer_ids) == tuple(ids[:taken])
    assert answer in decode(span.answer_ids, tokenizer)
    # One token less on either side would lose a part of the answer.
    assert answer not in decode(span.answer_ids[1:], tokenizer)
    assert answer not in decode(span.answer_ids[:-1], tokenizer)


@pytest.mark.parametrize("make", [tokenizers.merging_bpe, tokenizers.tagged_bpe, tokenizers.metaspace_bpe])
@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case, make):
    answer_format, prompt, completion, reason = MALFORMED[case]
    _, span = find(make(), answer_format, prompt, completion)
    assert span.malformed == reason
    assert (span.prefix_ids, span.answer_ids, span.answer) == ((), (), "")


@pytest.mark.parametrize(
    ("completion", "closed"),
    [("<answer>7</answer>", True), ("<answer>7", False), ("<answer>7<|endoftext|>", False)],
)
def test_whether_the_completion_closes_its_answer(completion, closed):
    assert find(tokenizers.gpt_bpe(), "tags", "", completion)[1].closed is closed


@pytest.mark.parametrize(
    ("answer_format", "completion"),
    [("after_think", "<think>a</think>7"), ("tags", "<answer>7"), (r"Answer: (.+)", "Answer: 7")],
)
def test_a_second_token_that_ends_a_turn_is_no_part_of_the_answer(answer_format, completion):
    """Gemma's <end_of_turn> and Phi's <|end|> end a turn, and the tokenizer's own token ends a text."""
    tokenizer = tokenizers.gpt_bpe()
    end = tokenizer.convert_tokens_to_ids("<|im_start|>")
    ids = tokenizer.encode(completion, add_special_tokens=False)
    sampled = [*ids, end, *tokenizer.encode("8", add_special_tokens=False)]
    assert find_answer(sampled, tokenizer, answer_format).answer == "7<|im_start|>8"
    span = find_answer(sampled, tokenizer, answer_format, eos_token_ids=[tokenizer.eos_token_id, end])
    assert span == find_answer(ids, tokenizer, answer_format)
    assert span.answer == "7"


def test_a_token_that_lies_across_the_border_belongs_to_the_answer():
    tokenizer = tokenizers.glued_bytes()
    ids, span = find(tokenizer, "tags", "", "<answer>52</answer>")
    assert tokenizer.decode(ids[7:9]) == ">52</"
    assert decode(span.prefix_ids, tokenizer) == "<answer"
    assert (span.joining, span.answer) == (">", "52")
    assert decode(span.answer_ids, tokenizer) == ">52</"


def test_a_space_of_its_own_belongs_to_the_prefix_and_a_glued_one_joins():
    tokenizer = tokenizers.glued_bytes()
    _, own = find(tokenizer, "tags", "", "<answer> 8</answer>")
    assert (decode(own.prefix_ids, tokenizer), own.joining) == ("<answer> ", "")
    _, glued = find(tokenizer, "tags", "", "<answer> 7</answer>")
    assert (decode(glued.prefix_ids, tokenizer), glued.joining) == ("<answer>", " ")
    assert decode(glued.answer_ids, tokenizer) == " 7"


def test_a_piece_that_splits_a_character_is_never_cut():
    tokenizer = tokenizers.merging_bpe()
    ids = tokenizer.encode("日本 <answer>東京</answer>", add_special_tokens=False)
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert "±äº" in pieces  # the end of one character and the start of the next
    span = find_answer(ids, tokenizer, "tags")
    assert decode(span.prefix_ids, tokenizer) + span.joining == "日本 <answer>"
    assert "東京" in decode(span.answer_ids, tokenizer)


# FC-034: a reward that reads text without special tokens would see "ok 7".
def test_tags_that_are_special_tokens_are_found():
    tokenizer = tokenizers.tagged_bpe()
    ids = tokenizer.encode("ok <answer>7</answer>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ok 7"
    span = find_answer(ids, tokenizer, "tags")
    assert (span.answer, len(span.answer_ids)) == ("7", 1)
    assert span.prefix_ids[-1] == tokenizer.convert_tokens_to_ids("<answer>")


def test_special_tokens_inside_the_completion_are_part_of_the_text():
    tokenizer = tokenizers.gpt_bpe()
    _, span = find(tokenizer, "tags", "", "a<|im_start|>b<answer>7<|im_start|>8</answer>")
    assert decode(span.prefix_ids, tokenizer) == "a<|im_start|>b<answer>"
    assert span.answer == "7<|im_start|>8"


def test_ids_that_spell_no_text_do_not_shift_the_answer():
    tokenizer = tokenizers.glued_bytes()
    broken = tokenizer.convert_tokens_to_ids(["æ", "Ŀ"])  # two bytes of three
    ids = [*broken, *tokenizer.encode("<answer>7</answer>", add_special_tokens=False), *broken]
    span = find_answer(ids, tokenizer, "tags")
    assert span.answer == "7"
    assert tuple(ids[: len(span.prefix_ids)]) == span.prefix_ids
    assert decode(span.prefix_ids, tokenizer).endswith("<answer>")


@pytest.mark.parametrize(
    ("prompt", "tail"),
    [
        (THINK_PROMPT, "<think>\n"),
        (NO_THINK_PROMPT, "<think>\n\n</think>\n\n"),
        (THINK_PROMPT + "Okay, ", "<think>\nOkay, "),
        ("<s>User: 2+2? Assistant: <think>", "<think>"),
        ("2+2? <think></think><answer>", "<think></think><answer>"),
        ("<|im_start|>user\nPut <think> first.<|im_end|>\n<|im_start|>assistant\n", ""),
        ("<s>Start with <think> and end with <answer>x</answer>. 2+2?", ""),
        ("", ""),
        ("<s>", ""),
    ],
)
@pytest.mark.parametrize("make", [tokenizers.gpt_bpe, tokenizers.tagged_bpe])
def test_assistant_tail(make, prompt, tail):
    tokenizer = make()
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert assistant_tail(ids, tokenizer).rstrip() == tail.rstrip()


def test_the_chat_template_of_the_tiny_models():
    tokenizer = tiny.tiny_tokenizer()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Use <answer>x</answer>."}], add_generation_prompt=True, tokenize=False
    )
    _, span = find(tokenizer, "tags", prompt, "<answer>4</answer><|end|>")
    assert span.answer == "4"


@pytest.mark.parametrize(
    ("answer_format", "message"), [("tag", "no group"), ("(", "no regular expression"), ("", "no group")]
)
def test_an_unknown_format_names_the_known_ones(answer_format, message):
    with pytest.raises(ValueError, match=message) as error:
        answer_finder(answer_format)
    assert "tags, boxed, after_think" in str(error.value)
