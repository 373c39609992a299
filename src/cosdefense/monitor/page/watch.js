// Every text is set as text, never as HTML: names and reasons may come from clients.

import { drawLine, drawReplies } from "./charts.js";

const MAX = { points: 1200, rounds: 15, nodes: 1000, shown: 200 };
const SILENT = new Set(["late", "unsent"]);
const run = { evaluations: [], replies: [], rounds: [], nodes: new Map() };
const get = (id) => document.getElementById(id);

function element(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const short = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(3))));
const whole = (value) => value.toLocaleString("en-US");
const sum = (values) => Object.values(values ?? {}).reduce((total, value) => total + (value ?? 0), 0);

function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(bytes, 1)) / 3));
  return `${short(bytes / 1000 ** power)} ${units[power]}`;
}

function duration(seconds) {
  if (seconds < 60) return `${short(seconds)} s`;
  return seconds < 3600 ? `${short(seconds / 60)} min` : `${short(seconds / 3600)} h`;
}

function thin(points) {
  return points.length > MAX.points ? points.filter((_, index) => (points.length - 1 - index) % 2 === 0) : points;
}

function apply(change, isWhole) {
  if (isWhole) Object.assign(run, { title: undefined, evaluations: [], replies: [], rounds: [], nodes: new Map() });
  const { evaluations = [], replies = [], rounds = [], nodes = [], ...others } = change;
  Object.assign(run, others);
  run.evaluations = thin([...run.evaluations, ...evaluations]);
  run.replies = thin([...run.replies, ...replies]);
  run.rounds = [...run.rounds, ...rounds].slice(-MAX.rounds);
  for (const node of nodes) run.nodes.set(node.id, node);
  if (run.nodes.size > MAX.nodes) run.nodes = new Map(rank().slice(0, MAX.nodes).map((node) => [node.id, node]));
  show();
}

function rank() {
  const share = (node) => node.n_accepted / node.n_asked;
  return [...run.nodes.values()].sort((a, b) => share(a) - share(b) || b.n_asked - a.n_asked || (a.name < b.name ? -1 : 1));
}

function show() {
  showHeader();
  if (run.title === undefined) return;
  showTiles();
  showAlarms();
  showCharts();
  showNodes();
  showRounds();
}

function setState(state) {
  get("state").dataset.state = state;
  get("state").textContent = state === "waiting" ? "waiting for the first round" : state;
}

function showHeader() {
  setState(run.status);
  const name = run.title === undefined ? "No records yet" : run.title;
  const kind = [run.experiment, run.strategy, run.attack && `attack: ${run.attack}`].filter(Boolean).join(" · ");
  get("title").textContent = name;
  get("about").textContent = [kind, run.folder].filter(Boolean).join(" · ");
  document.title = run.n_alarms ? `(${run.n_alarms}) ${name}` : name;
  const stopped = run.status === "stopped" ? "No process is writing to this run, and it is not finished." : "";
  get("problem").textContent = run.error || stopped;
  get("problem").hidden = !(run.error || stopped);
}

function showTiles() {
  const last = run.rounds[run.rounds.length - 1];
  const recent = run.rounds.slice(-10), seconds = sum(recent.map((row) => sum(row.seconds))) / Math.max(recent.length, 1);
  const phases = Object.entries(last?.seconds ?? {}).map(([phase, value]) => `${phase} ${short(value)} s`).join(", ");
  const n_rejected = sum(run.rejected);
  const tile = (title, value, detail) => element("div", { className: "tile" }, element("h3", { textContent: title }),
    element("div", { className: "value", textContent: value }), element("div", { className: "detail", textContent: detail }));
  get("tiles").replaceChildren(
    tile("Rounds", run.planned ? `${whole(run.n_rounds)} of ${whole(run.planned)}` : whole(run.n_rounds), `${whole(run.n_skipped)} skipped`),
    tile("Accuracy", percent(run.accuracy), `best ${percent(run.best_accuracy)} · loss ${short(run.loss)}`),
    tile("Last round", last ? `${last.n_accepted} of ${last.n_clients}` : "–", last?.skipped ? "skipped" : "nodes accepted"),
    tile("Rejected so far", whole(n_rejected), `of ${whole(run.n_accepted + n_rejected)} · ${whole(run.n_nodes)} nodes seen`),
    tile("Time per round", duration(seconds), phases || `${duration(sum(run.seconds))} in all`),
    tile("Data", size(sum(run.n_bytes)), sum(last?.n_bytes) ? `${size(sum(last.n_bytes))} in the last round` : "not recorded"),
  );
}

function describeAlarm(alarm) {
  const who = alarm.node === null ? "" : `Node ${alarm.node}: `;
  const since = alarm.until === null ? `since round ${alarm.round + 1}` : `rounds ${alarm.round + 1} to ${alarm.until + 1}`;
  return element("li", { className: alarm.until === null ? "" : "over" }, `${who}${alarm.message}`,
    element("span", { className: "when", textContent: `${alarm.rule} · ${since}` }));
}

function showAlarms() {
  const none = element("li", { className: "none", textContent: "None." });
  get("alarms").replaceChildren(...(run.alarms.length ? run.alarms.map(describeAlarm) : [none]));
  const past = get("past");
  past.hidden = !run.past_alarms.length;
  past.querySelector("summary").textContent = `${run.past_alarms.length} that are over`;
  past.querySelector("ul").replaceChildren(...run.past_alarms.map(describeAlarm).reverse());
}

function showCharts() {
  const known = (index) => run.evaluations.filter((point) => point[index] !== null).map((point) => [point[0], point[index]]);
  drawLine(get("accuracy"), known(1), { range: [0, 1], format: (value) => `${Math.round(1000 * value) / 10} %`, name: "Accuracy" });
  drawLine(get("loss"), known(2), { range: [0, null], format: short, name: "Loss" });
  drawReplies(get("replies"), run.replies.slice(-150));
  drawLine(get("seconds"), run.replies.map((point) => [point[0], point[3] ?? 0]), { range: [0, null], format: short, name: "Seconds" });
}

function strip(outcomes) {
  const classes = { accepted: "accepted", "not judged": "unjudged" };
  const bars = outcomes.map((outcome) => element("i", { className: SILENT.has(outcome) ? "silent" : classes[outcome] ?? "", title: outcome }));
  return element("span", { className: "strip", role: "img", ariaLabel: outcomes.join(", ") }, ...bars);
}

const scores = (values) => Object.entries(values).map(([name, value]) => `${name} ${short(value)}`).join(", ");

function showNodes() {
  const ranked = rank().slice(0, MAX.shown);
  get("nodes").replaceChildren(...ranked.map((node) => element("tr", {},
    element("th", { scope: "row", textContent: node.name, title: node.id }),
    element("td", {}, strip(node.outcomes)),
    element("td", { className: "number", textContent: `${whole(node.n_accepted)} of ${whole(node.n_asked)}` }),
    element("td", { textContent: Object.entries(node.reasons).map(([reason, n]) => `${reason} ${n}×`).join(", ") || "–" }),
    element("td", { textContent: scores(node.scores) || "–" }),
  )));
  get("more-nodes").hidden = run.n_nodes <= ranked.length;
  get("more-nodes").textContent = `${whole(ranked.length)} of ${whole(run.n_nodes)} nodes are listed.`;
}

function rejections(row) {
  const entries = row.rejected.map(({ node, reason, scores: values }) => element("span", {},
    element("b", { textContent: node }), ` ${reason}`, element("span", { className: "quiet", textContent: scores(values) ? ` (${scores(values)})` : "" })));
  const more = row.n_rejected - row.rejected.length;
  if (more > 0) entries.push(element("span", { className: "quiet", textContent: `and ${whole(more)} more` }));
  if (row.skipped !== null) entries.unshift(element("span", {}, element("b", { textContent: "Skipped: " }), row.skipped));
  return entries.length ? element("div", { className: "rejections" }, ...entries) : "–";
}

function showRounds() {
  const cell = (text, title = "") => element("td", { className: "number", textContent: text, title });
  const parts = (values, format) => Object.entries(values).map(([name, value]) => `${name}: ${format(value ?? 0)}`).join("\n");
  get("rounds").replaceChildren(...[...run.rounds].reverse().map((row) => element("tr", {},
    element("th", { scope: "row", textContent: String(row.round + 1) }),
    cell(percent(row.accuracy), row.loss === null ? "" : `loss ${short(row.loss)}`),
    cell(`${row.n_accepted} of ${row.n_clients}`),
    element("td", {}, rejections(row)),
    cell(short(sum(row.seconds)), parts(row.seconds, (value) => `${short(value)} s`)),
    cell(sum(row.n_bytes) ? size(sum(row.n_bytes)) : "–", parts(row.n_bytes, size)),
  )));
}

let scheduled = 0;
addEventListener("resize", () => {
  clearTimeout(scheduled);
  scheduled = setTimeout(() => run.title !== undefined && showCharts(), 100);
});

// Connects again by itself after a lost connection, and then gets a snapshot. After a refusal the user has to ask for it.
function connect() {
  const source = new EventSource("events");
  source.addEventListener("snapshot", (event) => apply(JSON.parse(event.data), true));
  source.addEventListener("update", (event) => apply(JSON.parse(event.data), false));
  source.addEventListener("error", () => {
    setState("disconnected");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
}
connect();
