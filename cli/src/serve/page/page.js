// The page of `fairlock serve`. Names, labels and owners come from everybody who can write to the server, so they only ever
// become text: the policy in http.rs lets no script make HTML of a string.

const byId = id => document.getElementById(id);
const state = { site: null, view: "locks", subject: "", first: { locks: 0, lock: 0, history: 0 }, frozen: null };
const LINES = 50;
const MOST_EVENTS = 500;

// ---- Text

// What is invisible, or moves other text, stands there as its number. So does a blank of another kind than the usual one.
const hidden = /(?! )[\p{C}\p{Z}]/gu;
const safe = text => String(text).replace(hidden, sign => `\\u{${sign.codePointAt(0).toString(16)}}`);
// The same for what is one word, so that it cannot pass for several: everybody who can write to the server chooses it.
const word = text => safe(text).replaceAll(" ", "\\u{20}");

// As `fairlock ls` writes durations: 850ms, 12.3s, 3m20s, 2h05m, 3d04h.
function span(ms) {
  if (ms === null || ms === undefined) return "-";
  const two = number => String(number).padStart(2, "0");
  const seconds = Math.floor(ms / 1000);
  if (seconds < 1) return `${ms}ms`;
  if (seconds < 60) return `${seconds}.${Math.floor(ms % 1000 / 100)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h${two(Math.floor(seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86400)}d${two(Math.floor(seconds / 3600) % 24)}h`;
}

const count = (number, one, many) => `${number} ${number === 1 ? one : many}`;

function client(info) {
  if (info.label === null && info.process === null) return info.id === "0" ? "nobody" : `client ${word(info.id)}`;
  return `${word(info.label ?? "-")} ${info.process ?? "-"}@${word(info.host ?? "-")}`;
}

// How long the server grants a lock to nobody, which is an owner of its own.
function quarantine(lock) {
  const nobody = lock.holders.find(holder => holder.owner === "00000000-0000-0000-0000-000000000000");
  return lock.quarantine_ms ?? nobody?.lease_left_ms ?? 0;
}

const clock = at => at.slice(11, 23);

// ---- Elements

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") element.addEventListener("click", value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

const lockLink = lock => make("a", { href: `#lock=${encodeURIComponent(lock)}`, class: "name" }, safe(lock));

function ownerLink(owner) {
  if (!state.site.blockers) return make("span", { class: "id" }, owner);
  return make("a", { class: "id", href: `#blockers=${encodeURIComponent(owner)}`, title: "Who blocks it?" }, owner);
}

const modeOf = (mode, text) => make("span", { class: mode ?? "" }, text ?? mode ?? "free");

// Rows and cells stay the same elements from look to look, so that a click, the focus and a selection are never lost.
function rows(body, items, keyOf, cellsOf) {
  const old = new Map([...body.rows].map(row => [row.dataset.key, row]));
  const alike = new Map();
  const next = items.map(item => {
    // An owner that reentered has several rows.
    const name = keyOf(item), before = alike.get(name) ?? 0, key = `${before} ${name}`, cells = cellsOf(item);
    alike.set(name, before + 1);
    const row = old.get(key) ?? make("tr", { "data-key": key }, ...cells.map(() => make("td", {})));
    old.delete(key);
    cells.forEach((cell, at) => {
      const place = row.cells[at], print = JSON.stringify([cell.print, cell.kind]);
      if (place.dataset.print === print) return;
      place.dataset.print = print;
      place.className = cell.kind ?? "";
      place.replaceChildren(cell.made());
    });
    return row;
  });
  old.forEach(row => row.remove());
  next.forEach((row, at) => {
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
}

const text = (text, kind) => ({ print: text, made: () => String(text), kind });
const node = (print, made, kind) => ({ print, made, kind });

// The same for trees: only the times in them change often.
function redraw(place, answer, parts) {
  const print = JSON.stringify(answer, (name, value) => name.endsWith("_ms") || name.endsWith("_ago") ? undefined : value);
  if (place.dataset.print !== print) {
    place.dataset.print = print;
    place.replaceChildren(...parts);
    return;
  }
  const fresh = make("div", {}, ...parts).querySelectorAll(".time");
  place.querySelectorAll(".time").forEach((time, at) => { time.textContent = fresh[at].textContent; });
}

function pages(place, view, matching, shown) {
  const first = state.first[view];
  const move = by => () => { state.first[view] = Math.max(0, first + by); look(); };
  const print = `${first} ${shown} ${matching}`;
  if (place.dataset.print === print) return;
  place.dataset.print = print;
  const from = shown === 0 ? 0 : first + 1;
  place.replaceChildren(
    `${from} to ${first + shown} of ${matching} `,
    make("button", { type: "button", class: "small", disabled: first === 0, click: move(-LINES) }, "Before"), " ",
    make("button", { type: "button", class: "small", disabled: first + shown >= matching, click: move(LINES) }, "Next"));
}

// ---- Asking

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  const kind = answer.headers.get("content-type") ?? "";
  const document = kind.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (answer.ok) return document;
  throw Object.assign(new Error(document.error), { status: answer.status });
}

function trouble(message) {
  byId("trouble").textContent = message === null ? "" : safe(message).replaceAll("\\u{a}", "\n");
  byId("trouble").hidden = message === null;
  byId("state").className = message === null ? "live" : "off";
  byId("state").textContent = message === null ? (state.site?.evict ? "live, evictions allowed" : "live, read only") : "not live";
}

let timer = null, asked = 0;

// Asks for what is shown, now and then again. A hidden page asks for nothing.
async function look() {
  clearTimeout(timer);
  const mine = ++asked;
  if (document.hidden) return;
  try {
    if (state.site === null) await begin();
    await views[state.view].look?.(() => mine === asked);
    if (mine === asked) trouble(null);
  } catch (error) {
    if (mine !== asked) return;
    if (error.status === undefined) state.site = null;
    trouble(error.status === undefined ? "fairlock serve does not answer" : error.message);
  }
  // Not by a repeated timer: a slow answer must not be asked for twice.
  if (mine === asked && (views[state.view].repeats || state.site === null)) {
    timer = setTimeout(look, Math.max(state.site?.interval_ms ?? 2000, 100));
  }
}

async function begin() {
  state.site = await ask("/api/site", {});
  byId("server").textContent = `${safe(state.site.server)}  prefix ${safe(state.site.prefix)}`;
  byId("subject-tools").hidden = !state.site.blockers;
  byId("lock-events-part").hidden = state.site.events === "none";
  byId("history-note").textContent = state.site.events === "all"
    ? `The last ${state.site.history} waits that ended since fairlock serve was started.`
    : `The last ${state.site.history} waits that ended while this page was open: without events of all locks only a look tells of them, so short waits are missing.`;
  byId("events-none").textContent = {
    all: "Events come from now on; fairlock serve keeps the latest ones.",
    lock: "A cluster brings the events of single locks: they stand on the page of each lock.",
    none: `${safe(state.site.no_events ?? "").replace(/^./, first => first.toUpperCase())}.`,
  }[state.site.events];
  listen();
}

// ---- Locks

function mode(lock) {
  if (lock.expired) return modeOf("bad", "expired");
  if (lock.mode === null) return modeOf(null, "free");
  const taken = lock.limit === null ? "" : ` ${lock.used}/${lock.limit}`;
  return modeOf(lock.mode, lock.mode + taken);
}

function heldBy(lock) {
  if (lock.holder === null) return "-";
  const since = lock.holder.expired_for_ms;
  const more = lock.holding > 1 ? ` and ${lock.holding - 1} more` : "";
  const votes = lock.servers !== null && lock.votes < lock.servers ? `, at ${lock.votes} of ${lock.servers} servers` : "";
  return (since === null ? "" : `expired ${span(since)} ago: `) + client(lock.holder.client) + more + votes;
}

async function lookAtLocks(isMine) {
  const query = {
    text: byId("locks-text").value, order: byId("locks-order").value,
    all: byId("locks-all").checked ? "1" : "0", first: state.first.locks, limit: LINES,
  };
  const list = await ask("/api/locks", query);
  if (!isMine()) return;
  if (list.locks.length === 0 && list.first > 0) {
    state.first.locks = 0;
    return lookAtLocks(isMine);
  }
  const { in_use, holding, waiting, unread } = list.totals;
  const errors = unread > 0 ? `, ${count(unread, "lock", "locks")} not readable` : "";
  byId("locks-totals").textContent = `${count(in_use, "lock", "locks")} in use, ${count(holding, "hold", "holds")}, ${waiting} waiting${errors}; all locks were looked at ${span(list.looked_ms_ago)} ago`;
  const more = list.further_complaints > 0 ? [`and ${list.further_complaints} more`] : [];
  byId("locks-complaints").replaceChildren(...[...list.complaints, ...more].map(text => make("li", {}, safe(text))));
  pages(byId("locks-pages"), "locks", list.matching, list.locks.length);
  rows(byId("locks-rows"), list.locks, lock => lock.lock, lock => lock.error !== undefined ? [
    node(lock.lock, () => lockLink(lock.lock), "name"), text("error", "bad"), text("-", "n wide"), text("-", "n"),
    text("-", "n"), text("-", "n wide"), text(safe(lock.error), "who bad"),
  ] : [
    node(lock.lock, () => lockLink(lock.lock), "name"),
    node([lock.mode, lock.expired, lock.used, lock.limit], () => mode(lock)),
    text(lock.holding, "n wide"), text(lock.waiting, "n"),
    text(span(lock.longest_wait_ms), "n"), text(span(lock.longest_hold_ms), "n wide"),
    text(heldBy(lock), "who"),
  ]);
  byId("locks-none").hidden = list.locks.length > 0;
  byId("locks-none").textContent = query.text === "" ? "No lock is held or waited for." : "No lock matches.";
}

// ---- One lock

function lease(request) {
  return request.expired_for_ms === null ? span(request.lease_left_ms) : `expired ${span(request.expired_for_ms)} ago`;
}

function share(request) {
  const permits = request.permits > 1 ? `, ${request.permits} permits` : "";
  if (request.upgrade) return modeOf("upgrade", "upgrade");
  return modeOf(request.mode, request.mode + permits + (request.holds > 1 ? ` x${request.holds}` : ""));
}

function evictButton(lock, request) {
  if (!state.site.evict) return text("");
  const made = () => make("button", { type: "button", class: "small danger", click: () => openEvict(lock, request) }, "Evict");
  return node("evict", made);
}

const requestKey = request => `${request.owner} ${request.mode}`;

async function lookAtLock(isMine) {
  const name = state.subject;
  byId("lock-name").textContent = safe(name);
  let lock;
  try {
    lock = await ask("/api/lock", { name, first: state.first.lock, limit: LINES });
  } catch (error) {
    if (error.status !== 404 || !isMine()) throw error;
    lock = { lock: name, mode: null, expired: false, policy: null, limit: null, holding: 0, waiting: 0, holders: [], waiters: [], unknown: true };
  }
  if (!isMine()) return;
  if (lock.waiters.length === 0 && state.first.lock > 0 && state.first.lock >= lock.waiting) state.first.lock = 0;
  const how = lock.unknown ? "there is no such lock: never used, or forgotten a minute after its last lease"
    : lock.expired ? "expired: the next request enters"
    : quarantine(lock) > 0 ? `held by nobody: the server is in quarantine for ${span(quarantine(lock))} still`
    : lock.mode === null ? "free" : `held to ${lock.mode}`;
  const permits = lock.limit === null ? "" : `, ${lock.used}/${lock.limit} permits`;
  byId("lock-blame").href = `#blockers=${encodeURIComponent(name)}`;
  byId("lock-blame").hidden = !state.site.blockers || lock.waiting === 0;
  byId("lock-state").textContent = `${how}, ${count(lock.holding, "hold", "holds")}${permits}, ${lock.waiting} waiting${lock.policy ? `, ${lock.policy.replace("_", "-")}` : ""}`;
  rows(byId("lock-holders"), lock.holders, requestKey, holder => [
    node([holder.mode, holder.permits, holder.holds], () => share(holder)),
    text(client(holder.client) + (holder.votes === undefined ? "" : `, at ${holder.votes} of ${lock.servers.length} servers`), "who"),
    text(span(holder.held_ms), "n"), text(lease(holder), holder.expired_for_ms === null ? "n" : "n bad"),
    text(holder.token, "n wide"), node(holder.owner, () => ownerLink(holder.owner)), evictButton(lock.lock, holder),
  ]);
  const more = lock.holding - lock.holders.length;
  byId("lock-holders-more").textContent = lock.holding === 0 ? "Nobody." : more > 0 ? `and ${more} more` : "";
  pages(byId("lock-pages"), "lock", lock.waiting, lock.waiters.length);
  byId("lock-queue").replaceChildren(...lock.waiters.map(waiter => waiter.upgrade ? modeOf("upgrade", "U")
    : modeOf(waiter.mode, waiter.mode === "read" ? "R" : "W")));
  rows(byId("lock-waiters"), lock.waiters, requestKey, waiter => [
    text(waiter.position, "n"), node([waiter.mode, waiter.permits, waiter.upgrade], () => share(waiter)),
    text(client(waiter.client), "who"), text(span(waiter.waited_ms), "n"),
    text(lease(waiter), waiter.expired_for_ms === null ? "n" : "n bad"),
    node(waiter.owner, () => ownerLink(waiter.owner)), evictButton(lock.lock, waiter),
  ]);
  const servers = lock.servers ?? [];
  byId("lock-servers-part").hidden = servers.length === 0;
  rows(byId("lock-servers"), servers, server => server.server, server => [
    text(safe(server.server), "who"), text(server.holding ?? "-", "n"), text(server.waiting ?? "-", "n"),
    text(server.error !== undefined ? safe(server.error) : server.quarantine_ms === null ? "votes"
      : `in quarantine, votes in ${span(server.quarantine_ms)}`, "who"),
  ]);
}

// ---- Who waits for whom

function who(request, before, after, ms) {
  const kind = request.upgrade ? "upgrade" : request.mode;
  const time = make("span", { class: "quiet" }, `${after} `, make("span", { class: "time" }, span(ms)), " ");
  return [modeOf(kind), ` ${before}${client(request.client)} `, time, ownerLink(request.owner)];
}

const waiterLine = (waiter, before) => who(waiter, before, "waits for", waiter.waited_ms);
const holderLine = holder => who(holder, "held by ", "for", holder.held_ms);

const heldByNobody = lock => make("li", { class: "quiet" }, "Held by nobody: the server is in quarantine for ",
  make("span", { class: "time" }, span(quarantine(lock))), " still");

function holdersOf(lock) {
  if (quarantine(lock) > 0) return [heldByNobody(lock)];
  const holders = lock.holders.map(holder => make("li", {}, ...holderLine(holder)));
  const others = lock.holding - lock.holders.length;
  if (lock.holders.length === 0) holders.push(make("li", { class: "quiet" }, "Nobody holds it: the next request or renewal grants it."));
  else if (others > 0) holders.push(make("li", { class: "quiet" }, `and ${count(others, "other hold", "other holds")}`));
  return holders;
}

function tree(lock) {
  const list = lock.waiters.map(waiter => make("li", {}, ...waiterLine(waiter, ""),
    waiter.holds.length > 0 ? make("ul", {}, ...waiter.holds.map(held => make("li", {}, "holds ", ...tree(held)))) : null));
  const more = lock.waiting - lock.waiters.length;
  if (lock.elsewhere) list.push(make("li", { class: "quiet" }, `${lock.waiting} waiting: see its own tree`));
  else if (more > 0) list.push(make("li", { class: "quiet" }, "and ", make("a", { href: `#lock=${encodeURIComponent(lock.lock)}` }, `${more} more`)));
  return [lockLink(lock.lock), make("span", { class: "quiet" }, ` ${lock.waiting} waiting`),
    make("ul", {}, ...(lock.elsewhere ? [] : holdersOf(lock)), ...list)];
}

function deadlock(circle) {
  const waits = circle.map(edge => make("li", {}, ownerLink(edge.owner), ` (${client(edge.client)}) waits for `,
    lockLink(edge.waits_for), ", which ", ownerLink(edge.held_by), " holds"));
  return make("div", { class: "tree deadlock" }, make("b", {}, "Deadlock: these owners wait for each other."), make("ul", {}, ...waits));
}

// The locks whose waits are unknown.
function unread(locks, further) {
  const lines = locks.map(lock => make("li", {}, lockLink(lock.lock), ` ${safe(lock.error)}`));
  if (further > 0) lines.push(make("li", {}, `and ${further} more`));
  return lines.length === 0 ? [] : [make("div", { class: "tree bad" }, "These locks could not be read.", make("ul", {}, ...lines))];
}

async function lookAtWaits(isMine) {
  const waits = await ask("/api/waits", {});
  if (!isMine()) return;
  const trees = waits.trees.map(lock => make("div", { class: "tree" },
    lock.circle ? make("p", { class: "bad" }, "The holders of this lock wait for others in a circle of processes.") : null, ...tree(lock)));
  if (trees.length === 0) trees.push(make("p", { class: "quiet" }, "Nobody waits for a lock."));
  if (waits.more > 0) trees.push(make("p", { class: "quiet" }, `${waits.more} more locks are waited for.`));
  if (waits.unsearched > 0) trees.unshift(make("p", { class: "bad" },
    `There may be more deadlocks: ${count(waits.unsearched, "owner", "owners")} not searched.`));
  trees.push(...unread(waits.unread, waits.further_unread));
  redraw(byId("trees"), waits, [...(waits.deadlocks ?? []).map(deadlock), ...trees]);
}

// The subject is a lock: who holds it. Its waiters stand on its own page.
function heldLock(lock) {
  return make("div", { class: "tree" }, lockLink(lock.lock), make("span", { class: "quiet" }, ` ${lock.waiting} waiting`), make("ul", {}, ...holdersOf(lock)));
}

// The holds at the ends of the chain.
function blamed(holds, more) {
  const lines = holds.map(({ lock, holder }) => make("li", {}, lockLink(lock), " ", ...holderLine(holder)));
  if (more > 0) lines.push(make("li", { class: "quiet" }, `and ${more} more`));
  return make("div", { class: "tree bad" }, make("b", {}, "To blame: their processes wait for no lock."), make("ul", {}, ...lines));
}

async function lookAtBlockers(isMine) {
  byId("blockers-subject").textContent = safe(state.subject);
  const answer = await ask("/api/blockers", { subject: state.subject });
  if (!isMine()) return;
  const parts = answer.waits.map(wait => {
    const more = list => wait.more?.[list] ? make("li", { class: "quiet" }, `and ${wait.more[list]} more`) : null;
    return make("div", { class: "tree" },
      wait.because_holder_of === null ? null : make("p", { class: "quiet" }, "A process that holds ", lockLink(wait.because_holder_of), " waits for"),
      lockLink(wait.lock),
      make("ul", {},
        ...wait.places.map(place => make("li", {}, ...waiterLine(place, `at place ${place.position}: `))), more("places"),
        ...(quarantine(wait) > 0 ? [heldByNobody(wait)] : wait.holders.map(holder => make("li", {}, ...holderLine(holder)))), more("holders"),
        ...wait.ahead.map(waiter => make("li", {}, ...waiterLine(waiter, "ahead: "))), more("ahead")),
      wait.closes_circle ? make("p", { class: "bad" }, "This may be a circle: the subject also holds this lock.") : null);
  });
  const lock = answer.lock;
  if (lock !== null) parts.unshift(heldLock(lock));
  // A holder that nobody waits for is not to blame for anything.
  if (answer.blame.length > 0 && (lock === null || lock.waiting > 0)) parts.push(blamed(answer.blame, answer.more?.blame ?? 0));
  if (parts.length === 0) parts.push(make("p", { class: "quiet" }, "It waits for no lock, and no lock of this name is in use."));
  parts.push(...unread(answer.unread, 0));
  if (answer.deadlock !== null) parts.unshift(deadlock(answer.deadlock));
  redraw(byId("blockers"), answer, parts);
}

// ---- Events

let source = null, heard = "", last = 0, fresh = [], events = [], frame = null;

// One stream at a time: a browser allows six connections to a host, for all its windows.
function listen() {
  const scope = state.site?.events;
  const lock = scope === "lock" && state.view === "lock" ? state.subject : null;
  const wanted = document.hidden || scope === undefined || scope === "none" || (scope === "lock" && lock === null) ? "" : `lock ${lock ?? ""}`;
  if (wanted === heard) return;
  source?.close();
  source = null;
  heard = wanted;
  if (wanted === "") return;
  if (lock !== null) events = [];
  const query = lock === null ? { after: last } : { lock };
  source = new EventSource(`/api/events?${new URLSearchParams(query)}`);
  source.onmessage = message => {
    if (message.lastEventId !== "") last = Number(message.lastEventId);
    fresh.push(JSON.parse(message.data));
    if (fresh.length > MOST_EVENTS) fresh.shift();
    // Many events are drawn at once.
    frame ??= requestAnimationFrame(drawEvents);
  };
  // The browser connects again by itself, but not after an answer that is no stream.
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return;
    heard = "";
    setTimeout(listen, 2000);
  };
}

function eventRow(event) {
  if (event.event === "missed") {
    return make("tr", {}, make("td", {}, ""), make("td", { class: "bad" }, "missed"), make("td", { colspan: 4, class: "who" }, safe(event.why)));
  }
  const kind = { granted: "good", expired: "bad", evicted: "bad", left: "upgrade" }[event.event] ?? "";
  return make("tr", {}, make("td", { title: event.at }, clock(event.at)), make("td", { class: kind }, event.event),
    make("td", { class: event.mode }, event.mode), make("td", { class: "name" }, lockLink(event.lock)),
    make("td", {}, ownerLink(event.owner)), make("td", { class: "n" }, String(event.token ?? "")));
}

function eventMatches(event, text) {
  return text === "" || event.event === "missed"
    || [event.lock, event.owner, event.client, event.event].some(part => part.toLowerCase().includes(text));
}

function drawEvents() {
  frame = null;
  if (fresh.length > 0) draw(fresh, false);
}

// The whole lists anew, as after a change of the filter.
function redrawEvents() {
  draw(fresh, true);
}

function draw(added, whole) {
  fresh = [];
  events.push(...added);
  if (events.length > MOST_EVENTS) events.splice(0, events.length - MOST_EVENTS);
  const words = byId("events-text").value.toLowerCase();
  const isShown = event => eventMatches(event, words);
  const isOfLock = event => event.event === "missed" || event.lock === state.subject;
  if (state.view === "events" && (whole || state.frozen === null)) {
    drawInto(byId("events-rows"), whole ? state.frozen ?? events : added, isShown, whole, 200);
  }
  if (state.view === "lock") drawInto(byId("lock-events"), whole ? events : added, isOfLock, whole, 20);
}

// The latest first.
function drawInto(body, list, isShown, whole, most) {
  if (whole) body.replaceChildren();
  body.prepend(...list.filter(isShown).slice(-most).reverse().map(eventRow));
  while (body.rows.length > most) body.lastElementChild.remove();
}

// ---- History

async function lookAtHistory(isMine) {
  const query = { text: byId("history-text").value, order: byId("history-order").value, first: state.first.history, limit: LINES };
  const history = await ask("/api/history", query);
  if (!isMine()) return;
  if (history.waits.length === 0 && history.first > 0) {
    state.first.history = 0;
    return lookAtHistory(isMine);
  }
  pages(byId("history-pages"), "history", history.matching, history.waits.length);
  const kind = { granted: "good", left: "upgrade", expired: "bad", evicted: "bad" };
  rows(byId("history-rows"), history.waits, wait => `${wait.at} ${wait.owner} ${wait.mode} ${wait.lock}`, wait => [
    text(clock(wait.at)), text(span(wait.waited_ms), "n"), text(wait.ended, kind[wait.ended] ?? ""),
    node(wait.mode, () => modeOf(wait.mode)), node(wait.lock, () => lockLink(wait.lock), "name"), text(client(wait.client), "who"),
  ]);
}

// ---- Evictions

let evicting = null, token = "";

function openEvict(lock, request) {
  evicting = { lock, owner: request.owner };
  byId("evict-owner").textContent = request.owner;
  byId("evict-client").textContent = client(request.client);
  byId("evict-lock").textContent = safe(lock);
  byId("evict-token").value = token;
  byId("evict-answer").hidden = true;
  byId("evict").showModal();
}

async function doEvict() {
  // Kept until the page is closed, and nowhere else.
  token = byId("evict-token").value.trim();
  byId("evict-do").disabled = true;
  try {
    const headers = { "Content-Type": "application/json", "Fairlock-Token": token };
    const answer = await fetch("/api/evict", { method: "POST", headers, body: JSON.stringify(evicting) });
    const said = await answer.text();
    if (answer.ok) {
      byId("evict").close();
      return look();
    }
    if (answer.status === 403) token = "";
    byId("evict-answer").textContent = safe(said.startsWith("{") ? JSON.parse(said).error : said.trim());
    byId("evict-answer").hidden = false;
  } catch (error) {
    // Also of a token that no header can have.
    byId("evict-answer").textContent = safe(`not evicted: ${error.message}`);
    byId("evict-answer").hidden = false;
  } finally {
    byId("evict-do").disabled = false;
  }
}

// ---- Views

const views = {
  locks: { look: lookAtLocks, repeats: true },
  lock: { look: lookAtLock, repeats: true, parent: "locks" },
  waits: { look: lookAtWaits, repeats: true },
  blockers: { look: lookAtBlockers, parent: "waits" },
  // Their stream brings the events; this only tells whether the command still runs.
  events: { look: () => ask("/api/site", {}), repeats: true },
  history: { look: lookAtHistory, repeats: true },
};

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [name, ...subject] = location.hash.slice(1).split("=");
  const view = Object.hasOwn(views, name) ? name : "locks";
  const next = decoded(subject.join("="));
  if (view !== state.view || next !== state.subject) {
    if (view === "lock") state.first.lock = 0;
    for (const id of ["lock-holders", "lock-waiters", "lock-events", "lock-queue", "lock-servers", "blockers"]) {
      byId(id).replaceChildren();
      delete byId(id).dataset.print;
    }
    byId("lock-state").textContent = "";
  }
  state.view = view;
  state.subject = next;
  for (const known of Object.keys(views)) byId(`view-${known}`).hidden = known !== view;
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href").slice(1);
    if (target === view || target === views[view].parent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === "lock" ? `${safe(next)} - fairlock` : "fairlock";
  listen();
  redrawEvents();
  look();
}

function again(view) {
  return () => {
    if (view in state.first) state.first[view] = 0;
    look();
  };
}

for (const view of ["locks", "history"]) {
  byId(`${view}-text`).addEventListener("input", again(view));
  byId(`${view}-order`).addEventListener("change", again(view));
}
byId("locks-all").addEventListener("change", again("locks"));
byId("blockers-again").addEventListener("click", look);
const askSubject = () => { if (byId("subject").value !== "") location.hash = `#blockers=${encodeURIComponent(byId("subject").value)}`; };
byId("subject-ask").addEventListener("click", askSubject);
byId("subject").addEventListener("keydown", event => { if (event.key === "Enter") askSubject(); });
byId("events-text").addEventListener("input", redrawEvents);
byId("events-pause").addEventListener("click", () => {
  state.frozen = state.frozen === null ? [...events] : null;
  byId("events-pause").textContent = state.frozen === null ? "Pause" : "Go on";
  byId("events-pause").setAttribute("aria-pressed", state.frozen !== null);
  redrawEvents();
});
byId("evict-cancel").addEventListener("click", () => byId("evict").close());
byId("evict-do").addEventListener("click", doEvict);
byId("evict-token").addEventListener("keydown", event => { if (event.key === "Enter") doEvict(); });
byId("evict").addEventListener("close", () => { evicting = null; });
document.addEventListener("visibilitychange", () => { listen(); look(); });
addEventListener("hashchange", route);
route();
