// A list whose items keep their elements. Unchanged items are not touched, and moved ones are moved
// one by one, so that updating a thousand rows every second costs next to nothing.
class KeyedList {
  // makeItem(key): {element, show(record)}.
  constructor(parent, makeItem) {
    this.parent = parent;
    this.makeItem = makeItem;
    this.items = new Map();
  }

  show(records, keyOf) {
    const keys = new Set(records.map(keyOf));
    for (const [key, item] of this.items) {
      if (keys.has(key)) continue;
      item.element.remove();
      this.items.delete(key);
    }
    let place = this.parent.firstElementChild;
    for (const record of records) {
      const { element } = this.update(keyOf(record), record);
      if (place !== null && element === place.nextElementSibling) {
        const early = place; // it comes later; moving this one is cheaper than moving all that follow
        place = element;
        early.remove();
      }
      if (element === place) place = place.nextElementSibling;
      else this.parent.insertBefore(element, place);
    }
  }

  update(key, record) {
    let item = this.items.get(key);
    if (item === undefined) {
      item = this.makeItem(key);
      this.items.set(key, item);
    }
    item.show(record);
    return item;
  }
}
