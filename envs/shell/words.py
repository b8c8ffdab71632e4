"""The vocabulary of all tasks: common words of 4 to 8 letters, all different.

No word is part of another one, so `grep WORD` and `sed 's/WORD/.../'` match only that word. None is
a word of an instruction, a tool or a command (tests/envs checks all of this).
"""

_TEXT = """
acorn anchor arctic badger bamboo barn beacon birch blossom branch bridge bucket butter cactus
canoe cargo cattle cement citrus cobalt copper coyote crimson cushion denim donkey dusty
elephant fancy fierce flower fountain fruit garlic giant glass gopher green harbor heather
hollow humble indigo island jasmine jigsaw kettle ladder laurel lentil lime locket magenta maple
melon mitten muffin nectar noodle ocean orange otter paddle panther peach pelican petal pillow
poem poppy proud purple quiet radish reef rocket ruby saffron saturn scooter silent snail spade
spiral stone swallow tablet temple tiger tomato trumpet turkey valley vine volcano walnut weasel
widget wooden young
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
