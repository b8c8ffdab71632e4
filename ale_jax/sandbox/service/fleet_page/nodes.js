// The nodes.
function meter(name) {
  const label = make("span", "meter-name");
  const value = make("span", "meter-value");
  const level = make("span", "level");
  put(label, name);
  const element = make("p", "meter", label, value, make("span", "track", level));
  const show = (text, share) => {
    put(value, text);
    fill(level, share);
    paint(level, share > 0.9 ? "level high" : "level");
  };
  return { element, show };
}

function makeNode(key) {
  const name = make("h3", "", visible(key));
  const chip = make("span", "chip");
  const facts = make("p", "muted");
  const [slots, cpu, memory] = ["slots", "CPU", "memory"].map(meter);
  const top = make("div", "node-top", name, chip);
  const element = make("li", "card node", top, slots.element, cpu.element, memory.element, facts);
  const show = (node) => {
    put(chip, node.alive ? "alive" : "lost");
    paint(chip, node.alive ? "chip good" : "chip bad");
    paint(element, node.alive ? "card node" : "card node lost");
    slots.show(`${node.used} of ${node.slots}`, node.used / node.slots);
    cpu.show(`${Math.round(node.cpu_percent)} %`, node.cpu_percent / 100);
    memory.show(part(node.memory_bytes, node.memory_limit_bytes), node.memory_bytes / node.memory_limit_bytes);
    put(facts, `${node.ready} warm \u00b7 ${node.restarts} re-created`);
  };
  return { element, show };
}
