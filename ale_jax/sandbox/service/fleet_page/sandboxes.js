// The sandboxes: which of them are shown, in which order, and how.
const GROUPS = {
  all: () => true,
  running: (row) => row.state === "running",
  busy: (row) => row.state === "running" && row.busy > 0,
  warm: (row) => row.state === "ready",
  coming: (row) => row.state === "pending" || row.state === "starting",
  ended: (row) => row.cause !== null || row.state === "stopping",
};
const GROUP_NAMES = { coming: "on their way", ended: "ended lately" };
const ORDERS = {
  newest: (row) => row.since,
  cpu: (row) => row.cpu_percent,
  memory: (row) => row.memory_bytes,
  disk: (row) => row.disk_bytes,
  processes: (row) => row.processes,
};
const TONES = { running: "good", ready: "calm", pending: "warn", starting: "warn", stopping: "calm", stopped: "calm", failed: "bad" };
const FIELDS = ["generation", "calls", "age", "image", "CPU", "memory", "disk", "processes"];

function selected(rows, group, search, order) {
  const wanted = search.trim().toLowerCase();
  const value = (row) => (row.cause === null ? 1e15 : 0) + (ORDERS[order](row) ?? -1);
  return rows
    .filter((row) => GROUPS[group](row) && (wanted === "" || searched(row).includes(wanted)))
    .map((row) => [value(row), row])
    .sort(([a], [b]) => b - a)
    .map(([, row]) => row);
}

const searched = (row) =>
  [row.id, row.image, row.node, row.state, row.cause ?? "", ...Object.entries(row.labels).flat()].join("\n").toLowerCase();

function stateOf(row) {
  if (row.silent_seconds >= 1) return [`silent for ${duration(row.silent_seconds)}`, "bad"];
  if (GROUPS.busy(row)) return ["busy", "active"];
  if (row.state === "ready") return ["warm", TONES.ready];
  return [row.state, TONES[row.state] ?? "calm"];
}

function whyOf(row) {
  const cause = row.cause === null ? "" : words(row.cause);
  const why = row.why === cause || row.why === row.cause ? "" : visible(row.why);
  const before = row.cause === null && why !== "" ? "before: " : "";
  return before + [cause === row.state ? "" : cause, why].filter(Boolean).join(": ");
}

function makeSandbox(key) {
  const id = make("span", "id", visible(key));
  const labels = make("span", "second");
  const chip = make("span", "chip");
  const why = make("span", "second");
  const cells = {};
  for (const name of FIELDS) {
    cells[name] = make("span", name === "image" ? "cell" : "cell number");
    cells[name].setAttribute("role", "cell");
    cells[name].dataset.name = name;
  }
  const [image, node] = [make("span", "first"), make("span", "second")];
  cells.image.append(image, node);
  const name = make("span", "cell name", id, labels);
  const state = make("span", "cell state", chip, why);
  const element = make("div", "row", name, state, ...Object.values(cells));
  for (const cell of [name, state]) cell.setAttribute("role", "cell");
  element.setAttribute("role", "row");
  element.dataset.id = key;

  const show = (row, now) => {
    put(labels, visible(Object.entries(row.labels).map((pair) => pair.join("=")).join(" \u00b7 ")));
    const [text, tone] = stateOf(row);
    put(chip, text);
    paint(chip, `chip ${tone}`);
    explain(why, whyOf(row));
    paint(element, row.cause === null ? "row" : "row over");
    put(cells.generation, String(row.generation));
    paint(cells.generation, row.generation > 0 ? "cell number again" : "cell number");
    put(cells.calls, row.busy > 0 ? String(row.busy) : "");
    put(cells.age, row.cause === null ? duration(now - row.since) : `${duration(now - row.since)} ago`);
    put(image, row.image);
    put(node, visible(row.node));
    put(cells.CPU, row.cpu_percent === null ? "" : `${Math.round(row.cpu_percent)} %`);
    put(cells.memory, row.memory_bytes === null ? "" : part(row.memory_bytes, row.memory_limit_bytes));
    put(cells.disk, row.disk_bytes === null ? "" : part(row.disk_bytes, row.disk_limit_bytes));
    put(cells.processes, row.processes === null ? "" : `${row.processes} of ${row.processes_limit}`);
  };
  return { element, show };
}
