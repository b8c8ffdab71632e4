// The events, the latest first.
const EVENTS_SHOWN = 300;
const EVENT_TONES = [
  [/lost|fail|fault|left/, "bad"],
  [/egress|reaped|removed|waits|silent|trouble/, "warn"],
  [/started|recreated|moved|joined|warm/, "good"],
];

const toneOf = (kind) => (EVENT_TONES.find(([pattern]) => pattern.test(kind)) ?? [null, "calm"])[1];

function makeEvent(event) {
  const time = make("time", "muted");
  put(time, clock(event.at));
  const chip = make("span", `chip ${toneOf(event.kind)}`);
  put(chip, words(event.kind.replace(/^sandbox_/, "")));
  const where = make("span", "id");
  put(where, visible(event.sandbox || event.fields.node || ""));
  const generation = make("span", "muted");
  if (event.fields.generation > 0) put(generation, `generation ${event.fields.generation}`);
  const detail = make("span", "detail");
  put(detail, visible(event.detail));
  const element = make("li", "event", time, chip, where, generation, detail);
  element.dataset.sandbox = event.sandbox;
  return element;
}

function missedEvents() {
  const element = make("li", "event nothing");
  put(element, "Some events are missing here: there were too many.");
  return element;
}

function filterEvents(list, search) {
  const wanted = search.trim().toLowerCase();
  for (const item of list.children) item.hidden = !item.textContent.toLowerCase().includes(wanted);
}

function addEvents(list, answer) {
  if (answer.missed) list.prepend(missedEvents());
  for (const event of answer.events) list.prepend(makeEvent(event));
  while (list.childElementCount > EVENTS_SHOWN) list.lastElementChild.remove();
}
