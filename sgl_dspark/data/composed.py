"""Everyday chat and code requests composed from templates and word lists of our own."""

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
_ROLES = (
    "a patient teacher", "a travel guide", "a museum curator", "a nutritionist", "a career coach", "a pirate captain",
    "a weather presenter", "a kind doctor", "a historian", "a sports commentator", "a wise old wizard", "a chef",
    "a ship's engineer", "a detective", "a news reporter", "a personal trainer",
)  # fmt: skip
_AUDIENCES = (
    "a child of eight", "a beginner", "a busy manager", "a high school student", "my grandmother", "a tourist",
    "someone who has never heard of it", "an engineer", "a class of twelve-year-olds", "a sceptical friend",
)  # fmt: skip
_FORMS = (
    "a haiku", "a short poem", "a limerick", "a letter to a friend", "a newspaper headline and first paragraph",
    "a list of ten questions", "a quiz with answers", "a short speech", "a product description", "a blog post",
    "a social media post", "an outline for a talk", "a diary entry", "a dialogue between two friends",
)  # fmt: skip
_ITEMS = (
    "name", "city", "price", "date", "colour", "phone number", "occupation", "age", "favourite food", "order number",
)  # fmt: skip
_SENTENCES = (
    "Anna moved from Lisbon to Oslo in 2015 to work as a nurse, and she rides a red bicycle to the hospital",
    "The blue sofa costs 450 euros and will be delivered to Mr. Patel on 3 May",
    "Our team sold 120 tickets on Monday, 85 on Tuesday and only 40 on Wednesday because of the storm",
    "The library on Hill Street is open from nine to six, but it closes at noon on Fridays",
    "Marco, a baker from Naples, bakes two hundred loaves before sunrise and sells them at the harbour",
    "The train to Berlin leaves at 14:35 from platform 7 and arrives four hours later",
    "Dr. Lee recommends thirty minutes of walking a day and less salt for her patients above sixty",
    "We planted apple, pear and cherry trees behind the school in the autumn of 2009",
)  # fmt: skip
_STEM = (
    "Why does {0} matter for {1}?", "What do {0} and {1} have in common?", "Compare {0} and {1}.",
    "Which is harder to understand, {0} or {1}? Give reasons.", "How did {0} change {1}?",
    "Write an analogy that explains {0} with the help of {1}.", "Invent a story that links {0} and {1}.",
)  # fmt: skip
# Each template with the lists that fill its places, in order.
_CHAT: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("What is {0}?", (_TOPICS,)), ("What are {0} and why do they matter?", (_TOPICS,)),
    ("Explain {0} to {1}.", (_TOPICS, _AUDIENCES)), ("Explain {0} in simple words.", (_TOPICS,)),
    ("Tell me three interesting facts about {0}.", (_TOPICS,)),
    ("Give a short summary of the history of {0}.", (_TOPICS,)), ("Why is {0} important?", (_TOPICS,)),
    ("How does {0} affect our daily lives?", (_TOPICS,)), ("Write {1} about {0}.", (_TOPICS, _FORMS)),
    ("Write a paragraph about {0}.", (_TOPICS,)), ("What are the advantages and disadvantages of {0}?", (_TOPICS,)),
    ("What should everyone know about {0}?", (_TOPICS,)), ("Give me five tips for {0}.", (_ACTIVITIES,)),
    ("How do I get better at {0}?", (_ACTIVITIES,)), ("Suggest a plan for {0} to {1}.", (_ACTIVITIES, _AUDIENCES)),
    ("What are common mistakes when {0}?", (_ACTIVITIES,)), ("Write a polite email to {0}.", (_OCCASIONS,)),
    ("Write a short and friendly message to {0}.", (_OCCASIONS,)),
    ("Write a short story about {0} who finds {1}.", (_PEOPLE, _FINDS)),
    ("Write the beginning of a novel in which {0} and {1} meet because of {2}.", (_PEOPLE, _PEOPLE, _FINDS)),
    ("Pretend to be {0} and tell me about {1}.", (_ROLES, _TOPICS)),
    ("You are {0}. Give me advice on {1}.", (_ROLES, _ACTIVITIES)),
    ("As {0}, answer this question: what is special about {1}?", (_ROLES, _TOPICS)),
    ("Extract every {0} from this text: {1}.", (_ITEMS, _SENTENCES)),
    ("Rewrite this more politely: {0}.", (_SENTENCES,)), ("Summarise this in five words: {0}.", (_SENTENCES,)),
    ("Ask me three questions about this text: {0}.", (_SENTENCES,)), ("Continue this text: {0}.", (_SENTENCES,)),
    *((template, (_TOPICS, _TOPICS)) for template in _STEM),
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
    "Write a Python function that {0}. Add a docstring and an example.", "Write a C++ function that {0}.",
    "How do I write a function that {0} in Python?", "Write a Python function with type hints that {0}.",
    "Write a test for a Python function that {0}.", "Write a Java method that {0}.", "Write a Rust function that {0}.",
    "Explain step by step how to write a program that {0}.", "Write pseudocode for a routine that {0}.",
    "Write a Python function that {0}, without using any library.", "Write a Python class with a method that {0}.",
    "Write a Python function that {0}, and another that {1}.",
)  # fmt: skip


def chat_prompt(rng: random.Random) -> str:
    """Compose one everyday request: questions, advice, writing, roles, texts to work on."""
    template, lists = rng.choice(_CHAT)
    return template.format(*(rng.choice(words) for words in lists))


def code_prompt(rng: random.Random) -> str:
    """Compose one request for a small program."""
    return rng.choice(_CODE).format(*rng.sample(_FUNCTIONS, 2))
