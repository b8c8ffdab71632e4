"""The vocabulary of every world: common words of 4 to 8 letters, all different.

No word is a part of another one, so `grep WORD` and `sed 's/WORD/.../'` hit what they name and
nothing else. None is a word of an instruction, a tool or a command (tests/envs holds all this).
"""

_TEXT = """
acorn alpine anchor apple arctic atlas badger bakery bamboo banjo barn basket beacon bench birch
bitter blossom bottle branch breeze bridge brush bucket bugle butter cabbage cactus camera canoe
canyon cargo carrot cattle cedar cement chess citrus clover cobalt coffee copper cosmic coyote
crayon crimson crystal cushion dawn denim diamond donkey drawer dusty earth elephant emerald
fancy ferry fierce flame flower forest fountain frog fruit galaxy garlic gentle giant giraffe
glass glove gopher grape green hammer harbor harvest heather hermit hollow hornet humble iceberg
indigo iris island jacket jasmine jersey jigsaw juniper kettle kitten ladder lamp laurel leather
lentil lettuce lime lizard locket lucky magenta mammoth maple maroon melon mint mitten mosaic
muffin napkin nectar nettle noodle oasis ocean olive orange orchid otter oven paddle palace
panther parrot peach pearl pelican penguin petal pickle pillow plum poem pollen poppy prairie
proud pumpkin purple quail quiet rabbit radish raisin reef river rocket royal ruby rustic
saffron salmon saturn scarf scooter shiny silent sleepy snail sofa spade spider spiral squash
stone sugar swallow sweater tablet teal temple thistle tiger tiny tomato torch trumpet tulip
turkey turtle valley velvet vine violin volcano wagon walnut warm weasel wheat widget window
wooden yellow young zigzag
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
