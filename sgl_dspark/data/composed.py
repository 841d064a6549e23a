"""Everyday chat and code questions, composed from templates and topics: the broad part of the demo draft's training."""

from __future__ import annotations

import random

_TOPICS = (
    "gravity", "volcanoes", "the moon", "earthquakes", "black holes", "electricity", "magnets", "the human heart",
    "bees", "dinosaurs", "whales", "the immune system", "DNA", "evolution", "atoms", "sound waves", "light",
    "rainbows", "oceans", "deserts", "glaciers", "rivers", "forests", "the solar system", "rockets", "satellites",
    "telescopes", "microscopes", "the internet", "computers", "databases", "encryption", "machine learning",
    "programming", "robots", "batteries", "solar panels", "wind turbines", "engines", "bridges", "aeroplanes",
    "trains", "bicycles", "ships", "clocks", "paper", "glass", "steel", "plastic", "cotton", "coffee", "tea",
    "chocolate", "bread", "cheese", "rice", "olive oil", "honey", "democracy", "taxes", "banks", "insurance",
    "trade", "supply and demand", "the stock market", "money", "budgets", "the Roman Empire", "ancient Egypt",
    "the Renaissance", "the Industrial Revolution", "the Middle Ages", "the Vikings", "the printing press",
    "the Silk Road", "jazz", "opera", "painting", "sculpture", "photography", "theatre", "novels", "poetry",
    "films", "football", "tennis", "swimming", "yoga", "running", "meditation", "sleep", "nutrition", "vitamins",
    "friendship", "leadership", "teamwork", "creativity", "memory", "stress", "habits", "curiosity", "trust",
    "honesty", "time management", "recycling", "climate", "biodiversity", "agriculture", "fishing", "architecture",
    "libraries", "museums", "schools", "languages", "maps", "mountains", "islands", "cats", "horses", "birds",
    "spiders", "trees", "flowers", "gardens", "statistics", "probability", "geometry", "algebra", "prime numbers",
    "fractions", "logic",
)  # fmt: skip
_ACTIVITIES = (
    "learning a language", "saving money", "writing an essay", "speaking in public", "cooking at home",
    "staying healthy", "making new friends", "studying for an exam", "planning a trip", "starting a business",
    "reading more books", "learning to code", "training a puppy", "moving to a new city",
    "organising a small kitchen", "running a marathon", "taking good photographs", "playing the guitar",
    "keeping houseplants alive", "reducing waste", "managing a team", "preparing a presentation",
    "learning to swim", "painting a room", "repairing a bicycle", "hosting a dinner party", "remembering names",
    "drinking more water", "improving handwriting", "camping in the rain", "writing a speech",
)  # fmt: skip
_PEOPLE = (
    "a baker", "a young sailor", "a retired teacher", "a curious robot", "a shy musician", "an old gardener",
    "a lost dog", "a brave girl", "a tired detective", "a travelling merchant", "two brothers", "a painter",
    "a clockmaker", "an astronaut", "a librarian", "a fisherman", "a grandmother", "a young inventor", "a farmer",
    "a doctor in a small village",
)  # fmt: skip
_FINDS = (
    "an old map", "a hidden door", "a silver key", "a strange egg", "an unfinished letter", "a forgotten garden",
    "a talking bird", "a broken compass", "a box of photographs", "a secret recipe", "a small star",
    "an empty train", "a mysterious song",
)  # fmt: skip
_OCCASIONS = (
    "thank a colleague for help with a project", "ask a manager for a day off", "invite friends to a picnic",
    "apologise to a customer for a late delivery", "cancel an appointment", "ask a teacher for more time",
    "congratulate a friend on a new job", "complain about a broken washing machine",
    "welcome a new member of the team", "ask for a refund", "remind a tenant about the rent",
    "recommend a former student", "postpone a meeting",
)  # fmt: skip
_CHAT = (
    ("What is {0}?", _TOPICS), ("What are {0} and why do they matter?", _TOPICS),
    ("Explain {0} to a beginner.", _TOPICS), ("Explain {0} in simple words.", _TOPICS),
    ("Tell me three interesting facts about {0}.", _TOPICS),
    ("Give a short summary of the history of {0}.", _TOPICS), ("Why is {0} important?", _TOPICS),
    ("How does {0} affect our daily lives?", _TOPICS), ("Write a short poem about {0}.", _TOPICS),
    ("Write a paragraph about {0}.", _TOPICS), ("What are the advantages and disadvantages of {0}?", _TOPICS),
    ("What should everyone know about {0}?", _TOPICS), ("Give me five tips for {0}.", _ACTIVITIES),
    ("How do I get better at {0}?", _ACTIVITIES), ("Suggest a plan for {0}.", _ACTIVITIES),
    ("What are common mistakes when {0}?", _ACTIVITIES), ("Write a polite email to {0}.", _OCCASIONS),
)  # fmt: skip
_FUNCTIONS = (
    "returns the largest number in a list", "checks whether a number is prime",
    "computes the factorial of a number", "counts the words in a sentence", "removes the spaces from a string",
    "sums the digits of an integer", "checks whether a string is a palindrome", "finds the longest word in a list",
    "sorts a list of numbers in descending order", "converts Celsius to Fahrenheit",
    "computes the average of a list", "returns the even numbers of a list",
    "counts how often each character occurs in a string", "finds the common elements of two lists",
    "squares every number in a list", "returns the n-th power of a number",
    "computes the greatest common divisor of two numbers", "flattens a list of lists",
    "computes the area of a circle", "capitalises the first letter of every word",
    "returns the last n items of a list", "finds the index of a value in a list", "multiplies two matrices",
    "removes duplicates from a list", "checks whether two words are anagrams", "generates a random password",
    "reads numbers from a file and adds them up", "replaces every vowel with a star", "computes compound interest",
    "counts the lines of a text file", "swaps the keys and values of a dictionary",
    "returns the smallest of three numbers", "checks whether a year is a leap year",
    "splits a list into chunks of size n", "computes the distance between two points", "rotates a list by k places",
    "converts a number to binary", "validates an email address", "prints the multiplication table of a number",
    "finds the missing number in a sequence", "computes the median of a list", "merges two dictionaries",
)  # fmt: skip
_CODE = (
    "Write a Python function that {0}.", "Write a Python function that {0}, and explain how it works.",
    "Write a JavaScript function that {0}.", "Write a short Python program that {0}.",
    "Write a Python function that {0}. Add a docstring and an example.",
    "How do I write a function that {0} in Python?", "Write a Python function with type hints that {0}.",
    "Write a test for a Python function that {0}.",
)  # fmt: skip


def chat_prompt(rng: random.Random) -> str:
    """Compose one everyday question."""
    if rng.random() < 0.12:
        return f"Write a short story about {rng.choice(_PEOPLE)} who finds {rng.choice(_FINDS)}."
    template, words = rng.choice(_CHAT)
    return template.format(rng.choice(words))


def code_prompt(rng: random.Random) -> str:
    """Compose one request for a small function."""
    return rng.choice(_CODE).format(rng.choice(_FUNCTIONS))
