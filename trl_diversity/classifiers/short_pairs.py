# SPDX-License-Identifier: Apache-2.0
"""Short answers of which it is plain whether they say the same: written by hand, as labels are mostly of long ones."""

import random

from trl_diversity.classifiers.pairs import LabelledPair


# Within a topic, every line is another answer; words joined by "|" are the same answer.
TOPICS = {
    "animal": "dog|hound, cat, whale, octopus, rabbit|bunny, horse, elephant, snake, shark, tiger, penguin, owl, bee",
    "colour": "red, dark blue|navy, green, yellow, purple|violet, orange, black, white, pink, brown",
    "food": "pizza, soup, salad, bread, rice, pasta, cheese, sandwich, chocolate cake, potato, pancake",
    "drink": "water, green tea, coffee, orange juice, milk, wine, lemonade, beer",
    "fruit": "apple, banana, grape, strawberry, peach, mango, lemon, cherry",
    "hobby": "reading, painting, cycling|riding a bicycle, cooking, gardening, photography, knitting, hiking, chess",
    "city": "Paris, London, Tokyo, New York|New York City, Berlin, Madrid, Cairo, Sydney",
    "country": "France, Japan, Brazil, the United States|the USA, Canada, Kenya, India, Norway",
    "job": "doctor|physician, teacher, lawyer|attorney, carpenter, pilot, nurse, farmer, writer|author, engineer",
    "weather": "rain, snow, sunshine, fog, wind, thunderstorm, hail",
    "vehicle": "car|automobile, bicycle|bike, bus, train, ship, airplane|plane, motorcycle",
    "tool": "hammer, screwdriver, saw, drill, wrench|spanner, ladder",
    "furniture": "chair, table, bed, sofa|couch, lamp, bookshelf, wardrobe",
    "plant": "oak tree, rose, cactus, sunflower, fern, tulip, pine tree",
    "feeling": "happiness|joy, anger, fear, sadness|sorrow, surprise, love, pride",
    "place": "beach, park, library, museum, forest|woods, mountain, castle, cinema|movie theater",
    "music": "piano, guitar, violin, drums, flute, trumpet",
    "sport": "soccer|football, tennis, swimming, basketball, running|jogging, boxing, golf",
    "name": "Emma, Liam, Sarah, John, Maria, David, Elara, Thomas",
    "season": "spring, summer, autumn|fall, winter",
    "number": "seven|7, three|3, forty-two|42, twelve|12, one hundred|100",
    "verdict": "yes|yes it is, no|no it is not, maybe|perhaps",
}
SAME_WORDS = 0.5
FORMS = (
    "{0}",
    "{0}.",
    "The {0}.",
    "A {0}.",
    "My answer is {0}.",
    "I would say {0}.",
    "It is {0}.",
    "I would choose {0}.",
    "How about {0}?",
    "**{0}**",
    "One of them is {0}.",
    "{0} is a good choice.",
)
# Every line is one advice, said in several ways.
SENTENCES = (
    ("Take a walk in the park.", "Go for a stroll through the park.", "You could walk in the park."),
    ("Read a good book.", "Pick up a book and read it.", "You can read a book you like."),
    ("Call an old friend.", "Phone a friend from the past.", "Ring up a friend you miss."),
    ("Drink a glass of water.", "Have some water.", "You should drink water."),
    ("Go to bed early tonight.", "Get to sleep early this evening.", "Try to sleep early tonight."),
    ("Cook dinner for your family.", "Prepare a meal for your family.", "Make dinner for the family."),
    ("Listen to your favorite music.", "Put on some music you love.", "Play the songs you like best."),
    ("Clean your desk.", "Tidy up your desk.", "Put your desk in order."),
    ("Write in a journal.", "Keep a diary.", "Note your thoughts in a journal."),
    ("Learn a new language.", "Study a foreign language.", "Start learning another language."),
    ("Save some money every month.", "Put money aside each month.", "Set aside part of your income monthly."),
    ("Meditate for ten minutes.", "Spend ten minutes in meditation.", "Sit and meditate for ten minutes."),
    ("Plant flowers in the garden.", "Put some flowers in your garden.", "Grow flowers in the garden."),
    ("The shop closes at six.", "At six o'clock the shop shuts.", "The store is open until six."),
    ("The cat sat on the mat.", "A cat was sitting on the mat.", "On the mat sat a cat."),
    ("Stock prices fell sharply on Monday.", "On Monday the stock market dropped a lot."),
    ("He lost his keys on the train.", "His keys were lost on the train.", "On the train he lost his keys."),
    ("The meeting was moved to Friday.", "They postponed the meeting to Friday.", "The meeting is now on Friday."),
)


# Who does what: the same subject with another deed is another story, however many words they share.
SUBJECTS = ("dragon", "old man", "cat", "young girl", "ship", "robot", "king", "forest", "teacher", "wolf", "river")
DEEDS = (
    "slept in a cave|was asleep in a cave",
    "flew over the village|soared above the village",
    "was afraid of the dark|feared the dark",
    "lost a golden ring",
    "walked into a bar|entered a bar",
    "sang a quiet song|quietly sang a song",
    "looked down at the burning city",
    "had a secret|kept a secret",
    "never came back|did not return",
    "waited at the edge of the lake|stood waiting by the lake",
    "was very hungry|was starving",
    "dreamed of snow|had a dream about snow",
    "told everyone a lie|lied to everyone",
    "found a friend|made a friend",
)
STORY_FORMS = ("The {0} {1}.", "A {0} {1}.", "One day the {0} {1}.", "Once, a {0} {1}.", "the {0} {1}")
QUALITIES = ("red", "green", "old", "new", "small", "big", "wooden", "hot", "cold", "quiet", "broken", "sweet")
THINGS = ("apple", "house", "car", "book", "shirt", "chair", "soup", "garden", "box", "song", "bowl", "boat")


def short_pairs(count: int, seed: int = 0) -> list[LabelledPair]:
    """
    Draw pairs of short answers to one question: a third say the same in other words, as many as in human labels.

    Args:
        count (`int`):
            Number of pairs.
        seed (`int`, *optional*, defaults to 0):
            Seed of the draws.

    Returns:
        `list[LabelledPair]`: with an empty prompt.
    """
    generator = random.Random(seed)
    kinds = (_named, _advice, _story, _described)
    pairs = []
    for index in range(count):
        similar = index % 3 == 0
        (kind,) = generator.choices(kinds, weights=(5, 2, 2, 1))
        pairs.append(LabelledPair(*kind(generator, similar), int(similar)))
    return pairs


def _named(generator: random.Random, similar: bool) -> tuple[str, str]:
    one, other = _drawn(generator, _answers(generator.choice(list(TOPICS.values()))), similar)
    return _said(generator, one), _said(generator, other)


def _advice(generator: random.Random, similar: bool) -> tuple[str, str]:
    return _drawn(generator, [list(ways) for ways in SENTENCES], similar)


def _story(generator: random.Random, similar: bool) -> tuple[str, str]:
    subject, deed = generator.choice(SUBJECTS), generator.choice(DEEDS)
    other_subject, other_deed = subject, deed
    if not similar:
        if generator.random() < 0.75:
            deed, other_deed = generator.sample(DEEDS, 2)
        else:
            subject, other_subject = generator.sample(SUBJECTS, 2)
    return _told(generator, subject, deed), _told(generator, other_subject, other_deed)


def _told(generator: random.Random, subject: str, deed: str) -> str:
    return generator.choice(STORY_FORMS).format(subject, generator.choice(deed.split("|")))


def _described(generator: random.Random, similar: bool) -> tuple[str, str]:
    quality, thing = generator.choice(QUALITIES), generator.choice(THINGS)
    other_quality, other_thing = quality, thing
    if not similar:
        if generator.random() < 0.5:
            quality, other_quality = generator.sample(QUALITIES, 2)
        else:
            thing, other_thing = generator.sample(THINGS, 2)
    return _said(generator, f"{quality} {thing}"), _said(generator, f"{other_quality} {other_thing}")


def _answers(line: str) -> list[list[str]]:
    return [answer.split("|") for answer in line.split(", ")]


def _drawn(generator: random.Random, answers: list[list[str]], similar: bool) -> tuple[str, str]:
    if similar:
        ways = generator.choice(answers)
        words = generator.choice(ways)
        # Mostly the same words in another form: that is what a policy repeats, synonyms are rare.
        return words, words if generator.random() < SAME_WORDS else generator.choice(ways)
    one, other = generator.sample(answers, 2)
    return generator.choice(one), generator.choice(other)


def _said(generator: random.Random, answer: str) -> str:
    text = generator.choice(FORMS).format(answer)
    return text[0].upper() + text[1:] if generator.random() < 0.8 else text
