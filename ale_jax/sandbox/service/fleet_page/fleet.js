// Updates the page with the answers of the service.
const GROUP_BUTTONS = new Map();
const nodeList = new KeyedList(find("nodes"), makeNode);
const sandboxList = new KeyedList(find("sandboxes"), (key) => {
  const item = makeSandbox(key);
  return { element: item.element, show: (row) => item.show(row, latest.at) };
});
let latest = null;
let answeredAt = 0;
let failedSince = null;
let next = null;
let group = "all";
let dismissed = new Set();

function showTotals() {
  const { states, rows } = latest.sandboxes;
  const of = (...names) => names.reduce((sum, name) => sum + (states[name] ?? 0), 0);
  const alive = latest.nodes.filter((node) => node.alive);
  const sum = (name) => alive.reduce((total, node) => total + node[name], 0);
  const counts = {
    all: of(...Object.keys(states)),
    running: of("running"),
    busy: rows.filter(GROUPS.busy).length,
    warm: of("ready"),
    coming: of("pending", "starting"),
    ended: of("stopping", "stopped", "failed"),
  };
  for (const cell of find("totals").querySelectorAll("dd")) {
    const name = cell.dataset.of;
    put(cell, name === "slots" ? `${sum("used")} of ${sum("slots")}` : String(counts[name]));
  }
  for (const [name, button] of GROUP_BUTTONS) {
    put(button.lastElementChild, String(counts[name]));
    button.setAttribute("aria-pressed", String(name === group));
  }
}

function showSandboxes() {
  const { rows } = latest.sandboxes;
  const shown = selected(rows, group, find("search").value, find("order").value);
  sandboxList.show(shown, (row) => row.id);
  const none = find("none");
  none.hidden = shown.length > 0;
  put(none, rows.length > 0 ? "No sandbox matches." : "There is no sandbox yet.");
  const total = Object.values(latest.sandboxes.states).reduce((sum, count) => sum + count, 0);
  find("more").hidden = total === rows.length;
  put(find("more"), `${total - rows.length} more ended before these.`);
}

function showLostNodes() {
  const lost = latest.nodes.filter((node) => !node.alive).map((node) => node.node);
  const news = lost.filter((name) => !dismissed.has(name));
  find("nodes-lost").hidden = news.length === 0;
  if (news.length === 0) return;
  const names = news.map(visible).join(", ");
  put(find("nodes-lost").querySelector("p"), news.length === 1 ? `Node ${names} is lost.` : `${news.length} nodes are lost: ${names}.`);
}

function showAnswer(answer) {
  latest = answer;
  answeredAt = Date.now();
  failedSince = null;
  next = answer.events.next;
  find("service-lost").hidden = true;
  find("token").hidden = true;
  find("fleet").hidden = false;
  find("leave").hidden = token.get() === null;
  document.body.className = "live";
  showTotals();
  nodeList.show(answer.nodes, (node) => node.node);
  showLostNodes();
  showSandboxes();
  addEvents(find("events"), answer.events);
  filterEvents(find("events"), find("search").value);
  find("quiet").hidden = find("events").childElementCount > 0;
  showPulse();
}

// Returns false if polling has to stop until there is a token.
function showFailure(error, pause) {
  if (error.status === 401) {
    askForToken(token.get() !== null);
    return false;
  }
  failedSince ??= Date.now();
  document.body.className = "stale";
  const what = error.message && error.status ? `The service refuses: ${error.message}.` : "The service does not answer.";
  const since = answeredAt === 0 ? "" : ` The data below is from ${clock(answeredAt / 1000)}.`;
  put(find("service-lost").querySelector("p"), `${what}${since} The next try is in ${Math.round(pause / 1000)} s.`);
  find("service-lost").hidden = false;
  showPulse();
  return true;
}

// An error in this page itself: what it shows may be out of date.
function showFault() {
  document.body.className = "stale";
  put(find("service-lost").querySelector("p"), "This page has failed. Reload it.");
  find("service-lost").hidden = false;
}

function askForToken(wasWrong) {
  token.forget();
  next = null; // the next token may belong to somebody else, who has other events
  find("events").replaceChildren();
  find("fleet").hidden = true;
  find("leave").hidden = true;
  find("service-lost").hidden = true;
  find("nodes-lost").hidden = true;
  find("token-refused").hidden = !wasWrong;
  find("token").hidden = false;
  document.body.className = "";
  find("token").elements.token.focus();
  put(find("pulse"), "waiting for a token");
}

function showPulse() {
  put(find("pulse"), failedSince === null ? `live, as of ${clock(answeredAt / 1000)}` : "no answer");
}

const follower = new Follower(() => (next === null ? "v1/fleet" : `v1/fleet?after=${next}`), showAnswer, showFailure);

function listen() {
  window.addEventListener("unhandledrejection", showFault);
  for (const name of Object.keys(GROUPS)) {
    const button = make("button", "filter", `${GROUP_NAMES[name] ?? name} `, make("span", "count"));
    button.type = "button";
    button.addEventListener("click", () => {
      group = name;
      showTotals();
      showSandboxes();
    });
    GROUP_BUTTONS.set(name, button);
    find("filters").append(button);
  }
  find("search").addEventListener("input", () => {
    showSandboxes();
    filterEvents(find("events"), find("search").value);
  });
  find("order").addEventListener("change", showSandboxes);
  find("service-lost").querySelector("button").addEventListener("click", () => follower.now());
  find("nodes-lost").querySelector("button").addEventListener("click", () => {
    dismissed = new Set(latest.nodes.filter((node) => !node.alive).map((node) => node.node));
    showLostNodes();
  });
  find("leave").addEventListener("click", () => {
    token.forget();
    location.reload();
  });
  find("token").addEventListener("submit", (event) => {
    event.preventDefault();
    token.keep(find("token").elements.token.value.trim());
    follower.run();
  });
}

listen();
follower.run();
