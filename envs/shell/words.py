"""The vocabulary of every world: common words of 4 to 8 letters, all different.

No word is a part of another one, so `grep WORD` and `sed 's/WORD/.../'` hit what they name and
nothing else. None is a word of an instruction, a tool or a command (tests/envs holds all this).
"""

_TEXT = """
acorn almond alpine amber anchor antler apple apron arctic aspen atlas attic badger bagel bakery
balloon bamboo banana banjo barley barn basil basket beach beacon beaver bench bicycle birch
biscuit bitter blanket blossom bonfire bottle boulder branch bread breeze brick bridge bronze
brush bubble bucket buffalo bugle bunker butter button cabbage cabin cactus camel camera candle
canoe canvas canyon caramel cargo carpet carrot castle cattle cavern cedar cello cement cherry
chess chimney citrus cliff clover coast cobalt coconut coffee comet copper coral cosmic cotton
coyote crater crayon cricket crimson crow crystal cuckoo cushion daisy dawn deer denim desert
diamond dolphin donkey dragon drawer drum dusty eagle earth elder elephant ember emerald falcon
fancy feather ferry fiddle fierce finch flame flint flower flute forest fossil fountain freckle
frog frost fruit funnel galaxy garden garlic gecko gentle geyser giant ginger giraffe glacier
glass globe glove golden gopher granite grape gravel green guitar hammer hamster harbor harp
harvest hazel heather helmet hermit heron hollow honey hornet horse humble husky iceberg igloo
indigo insect iris iron island ivory jacket jaguar jasmine jelly jersey jewel jigsaw jungle
juniper kayak kettle kitchen kitten koala ladder lagoon lamp lantern laurel lava leather lemon
lentil leopard lettuce lilac lime lion lizard lobster locket lotus lucky lunar magenta magnet
mammoth mango maple marble maroon meadow melon meteor mint mirror mitten monkey mosaic mountain
muffin mustard napkin narrow nectar needle nettle noble noodle nugget oasis oatmeal ocean
octopus olive onion orange orbit orchid oregano otter oval oven oyster paddle pagoda palace
panda panther parade parrot parsley peach peanut pearl pebble pelican pencil penguin pepper
petal piano pickle pigeon pillow planet plum pocket poem polite pollen pond poppy potato prairie
prism proud pudding pumpkin puppet purple puzzle quail quartz quiet quilt rabbit raccoon radish
rainbow raisin raven reef ribbon river robin rocket rose royal rubber ruby rugged rustic saddle
saffron salad salmon sandal saturn sauce scarf scarlet scooter shadow shiny shovel silent silver
sleepy smooth snail snowman sofa solar spade sparrow spider spinach spiral spoon squash statue
stone stream sugar sunset swallow swan sweater syrup tablet tango teal teapot temple tender
thistle thunder tiger timber tiny toast tomato topaz torch tower trumpet trunk tulip tunnel
turkey turnip turtle umbrella valley vanilla velvet village vine violet violin vivid volcano
waffle wagon wallet walnut walrus warm wasp weasel whale wheat whisper widget willow window wolf
wooden woolen yellow yogurt young zebra zigzag zinc
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
