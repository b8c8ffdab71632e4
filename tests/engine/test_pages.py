"""Pages: nobody's are lost, and two conversations have one in common only if they begin alike."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ale_jax.engine.pages import PagePool, Weights, prefix_keys

PAGES, PAGE_TOKENS, EACH = 10, 2, 4
PROMPTS = st.lists(st.integers(0, 1), max_size=PAGE_TOKENS * EACH)


class Pool(RuleBasedStateMachine):
    """Conversations come, read their prompts from the front and go, in any order."""

    tables = Bundle("tables")

    def __init__(self):
        super().__init__()
        self.pool = PagePool(PAGES)
        self.live = []

    @rule(target=tables, prompt=PROMPTS, version=st.integers(0, 1))
    def begin(self, prompt, version):
        keys = prefix_keys(prompt, PAGE_TOKENS, version)
        taken = self.pool.allocate(keys, EACH)
        in_use = {page for other in self.live for page in other["pages"]}
        if taken is None:
            assert len(in_use) > PAGES - EACH
            return {"pages": []}
        pages, known = taken
        assert len(set(pages)) == EACH and known <= len(keys)
        assert in_use.isdisjoint(pages[known:])
        table = {"pages": pages, "keys": keys, "read": known}
        self.live.append(table)
        return table

    @rule(table=tables)
    def read_a_page(self, table):
        if table in self.live and table["read"] < len(table["keys"]):
            self.pool.register(table["pages"][table["read"]], table["keys"][table["read"]])
            table["read"] += 1

    @rule(table=consumes(tables))
    def end(self, table):
        if table in self.live:
            self.live.remove(table)
            self.pool.release(table["pages"])

    @invariant()
    def what_is_shared_was_read_and_is_the_same(self):
        holder = {}
        for table in self.live:
            for i, page in enumerate(table["pages"]):
                if page in holder:
                    assert i < table["read"]
                    assert holder[page] == (i, table["keys"][i])
                elif i < len(table["keys"]):
                    holder[page] = (i, table["keys"][i])
                else:
                    holder[page] = None

    def teardown(self):
        for table in self.live:
            self.pool.release(table["pages"])
        pages, known = self.pool.allocate([], PAGES)
        assert sorted(pages) == list(range(PAGES)) and known == 0


Pool.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase


def _read(pool, prompt, count):
    keys = prefix_keys(prompt, PAGE_TOKENS, 0)
    pages, known = pool.allocate(keys, count)
    for page, key in zip(pages, keys, strict=False):
        pool.register(page, key)
    return pages, known


def test_an_ended_conversation_is_remembered_until_its_pages_are_needed():
    pool = PagePool(4)
    first, _ = _read(pool, [1, 1, 2, 2], 2)
    pool.release(first)
    second, known = _read(pool, [1, 1, 2, 2], 2)
    assert (second, known) == (first, 2)
    pool.release(second)
    pool.release(pool.allocate([], 4)[0])
    assert _read(pool, [1, 1, 2, 2], 2)[1] == 0


def test_the_longest_unused_is_forgotten_first():
    pool = PagePool(4)
    for prompt in ([1, 1], [2, 2], [1, 1]):
        pool.release(_read(pool, prompt, 1)[0])
    pool.release(pool.allocate([], 3)[0])
    assert _read(pool, [1, 1], 1)[1] == 1
    assert _read(pool, [2, 2], 1)[1] == 0


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning():
    """Later pages are found only behind those before them."""
    pool = PagePool(4)
    prompt = [1, 1, 2, 2, 3, 3]
    pool.release(_read(pool, prompt, 3)[0])
    pool.release(pool.allocate([], 2)[0])  # the one that was never used, and one of the prompt's
    assert pool.num_cached(prefix_keys(prompt, PAGE_TOKENS, 0)) == 2


def test_a_page_is_known_by_all_that_comes_before_it_and_by_the_weights():
    ab, cb = (prefix_keys([*head, 5, 6], 2, 0) for head in ((1, 2), (3, 4)))
    assert ab[1] != cb[1]
    weights = Weights(0), Weights(1), Weights(0, adapter=1)
    assert len({prefix_keys([1, 2], 2, each)[0] for each in weights}) == 3
    assert len(prefix_keys([1, 2, 3], 2, 0)) == 1


def test_a_known_page_is_not_also_a_free_one():
    pool = PagePool(4)
    pool.release(_read(pool, [1, 1, 2, 2], 2)[0])
    pool.allocate([], 2)
    keys = prefix_keys([1, 1, 2, 2], 2, 0)
    assert pool.allocate(keys, 3) is None
    assert pool.allocate(keys, 2)[1] == 2  # the refusal changed nothing


def test_what_others_would_release_counts_once_nobody_else_uses_it():
    pool = PagePool(4)
    first, _ = _read(pool, [1, 1, 2, 2], 2)
    second, _ = _read(pool, [1, 1, 3, 3], 2)
    assert first[0] == second[0]
    new = prefix_keys([9, 9], 2, 0)
    assert pool.can_allocate(new, 1) and not pool.can_allocate(new, 2)
    assert pool.can_allocate(new, 2, [first]) and not pool.can_allocate(new, 3, [first])
    assert pool.can_allocate(new, 4, [first, second])
    # Pages that are known, and are used again, are not free as well.
    keys = prefix_keys([1, 1, 2, 2], 2, 0)
    assert pool.can_allocate(keys, 4, [first, second]) and not pool.can_allocate(
        keys, 5, [first, second]
    )
    for pages in (first, second):
        pool.release(pages)
    assert pool.can_allocate(new, 4) and pool.allocate(keys, 4)[1] == 2
