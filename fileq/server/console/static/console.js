// Live updates, actions, keys, theme. Every action is a request to the API, with the session.
const body = document.body, root = document.documentElement, { base } = body.dataset, api = `${base}/api/v1`;
const find = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const on = (name, react) => document.addEventListener(name, react);
const stored = (name, value) => { try { if (value !== undefined) localStorage[`fileq.${name}`] = value; return localStorage[`fileq.${name}`]; } catch { return null; } };
const joined = (...parts) => parts.filter(Boolean).join(" ");

// Theme. The server paints a page by the cookie. A page that the browser kept may be older than the choice.
const setTheme = (theme) => { root.dataset.theme = theme; document.cookie = `fileq_theme=${theme}; Path=${base || "/"}; Max-Age=31536000; SameSite=Strict${location.protocol === "https:" ? "; Secure" : ""}`; };
const chosen = document.cookie.match(/(?:^|; )fileq_theme=(dark|light)/)?.[1];
if (chosen && chosen !== root.dataset.theme) setTheme(chosen);
const toggleTheme = () => setTheme((root.dataset.theme || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark")) === "light" ? "dark" : "light");

const grouped = (count) => count.toLocaleString("en").replaceAll(",", "\u202f"); // as on the pages

const make = (tag, values) => Object.assign(document.createElement(tag), values);
const toJob = (id) => `/dashboard/jobs/${encodeURIComponent(id)}`;

// Toasts: text only, never HTML. A tap goes through them.
const toast = (text, isBad = false, href = "", word = "") => {
  const made = make("div", { className: isBad ? "toast bad" : "toast" });
  made.append(make("span", { textContent: text }));
  if (href) made.append(make("a", { href: base + href, textContent: word }));
  made.append(make("button", { type: "button", className: "plain", textContent: "×", ariaLabel: "Close", onclick: () => made.remove() }));
  find("#toasts").append(made); setTimeout(() => made.remove(), href ? 15000 : isBad ? 10000 : 5000);
  return made;
};
let died = 0, shown; // one toast, however many die
const tellDeaths = (count, id, name) => {
  died = count + (shown?.isConnected ? died : 0); shown?.remove();
  shown = toast(died > 1 ? `${died} jobs died.` : `${name.replace(/\p{C}/gu, "?") || "A job"} died.`, true, died > 1 ? "/dashboard/dead" : toJob(id), "See why");
};

// Selected rows survive a refresh of their table.
const selected = new Set();
const showSelection = () => {
  for (const box of all("input[data-id]")) box.checked = selected.has(box.dataset.id);
  for (const one of all("[data-selected]")) one.hidden = !selected.size;
  for (const one of all("[data-selected-count]")) one.textContent = selected.size;
};

// Live updates: one stream that says what changed, at most once a second; then the live part of the page is fetched again.
let stream = null, isLive = stored("live") !== "off", isDue = false, lastRefresh = 0, timer = 0;
const live = () => find("[data-live]");
const isTyped = (one) => one?.matches("input:not([type=checkbox]), select, textarea");
const isBusy = () => find("dialog[open]") || [isTyped(document.activeElement) && document.activeElement, !getSelection().isCollapsed && getSelection().anchorNode].some((one) => one && live()?.contains(one));
export const refresh = () => {
  clearTimeout(timer); timer = 0;
  if (!live() || document.hidden) { isDue = true; return; }
  const wait = lastRefresh + 1000 - Date.now();
  if (isBusy() || wait > 0) { timer = setTimeout(refresh, Math.max(wait, 250)); return; }
  lastRefresh = Date.now(); isDue = false;
  htmx.ajax("GET", location.pathname + location.search, { source: live(), target: live(), select: "[data-live]", swap: "outerHTML" });
};
const refreshNow = () => { lastRefresh = 0; refresh(); };
const concerns = (tick) => { const wanted = body.dataset.changes; return tick.is_reset || tick.dropped || wanted === "*" || Object.keys(tick.events || {}).some((name) => wanted.split(" ").some((one) => one.endsWith("*") ? name.startsWith(one.slice(0, -1)) : name === one)); };
const connect = () => {
  if (stream || !isLive || document.hidden || !find("#main") || !body.dataset.changes) return;
  stream = new EventSource(`${api}/events?mode=ticks`);
  stream.addEventListener("tick", (event) => {
    const tick = JSON.parse(event.data);
    const count = tick.events?.["job.dead"];
    if (count) tellDeaths(count, tick.last_dead, tick.last_dead_name);
    if (concerns(tick)) refresh();
  });
  // What the page waits for may have happened before the stream was open.
  stream.onopen = () => { if (live()?.matches("[data-unsettled]")) refresh(); };
  for (const name of ["reset", "lag"]) stream.addEventListener(name, refresh);
};
const disconnect = () => { stream?.close(); stream = null; };
const showLive = () => { for (const one of all('[data-do="live"]')) { one.setAttribute("aria-pressed", isLive); find("[data-live-word]", one).textContent = isLive ? "Live" : "Frozen"; } };
const toggleLive = () => { isLive = !isLive; stored("live", isLive ? "on" : "off"); showLive(); if (isLive) { connect(); refresh(); } else disconnect(); };
on("visibilitychange", () => { if (document.hidden) disconnect(); else { connect(); if (isDue && isLive) refresh(); } });
on("htmx:afterRequest", ({ detail: { xhr } }) => { if (xhr?.status) body.dataset.state = xhr.getResponseHeader("X-Fileq-State") || "live"; });
// The focus survives a swap: it goes to the same element of its kind in its row, or in the page. Links come and go.
let focused = null;
on("htmx:beforeSwap", () => {
  const one = document.activeElement, row = one.closest("[data-row]"), part = live();
  focused = part && one !== part && part.contains(one) ? { row: row?.dataset.row, tag: one.tagName, at: all(one.tagName, row || part).indexOf(one) } : null;
});
on("htmx:afterSwap", () => {
  if (!focused || document.activeElement !== body) return;
  const within = focused.row === undefined ? live() : all("[data-row]").find((row) => row.dataset.row === focused.row), one = within && all(focused.tag, within)[focused.at];
  one?.focus({ preventScroll: true });
});
on("htmx:afterSettle", () => { showSelection(); mark(); });
on("htmx:responseError", (event) => { if (event.detail.xhr.status !== 401) toast("Refresh failed.", true); });
setInterval(() => { if (isLive && body.dataset.state !== "live") refresh(); }, 2000);
setInterval(() => { if (isLive && stream) refresh(); }, 30000);
// Ages go on between refreshes, by the server's clock. What was due is "now" until the page is fetched again.
const ahead = Date.now() - Number(body.dataset.now || Date.now());
const rough = (seconds) => { const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, one]) => seconds >= one) || ["s", 1]; return `${Math.floor(seconds / length)} ${unit}`; };
setInterval(() => {
  if (!isLive || !live() || document.hidden || body.dataset.state === "away" || isBusy()) return;
  for (const one of all("time", live())) {
    const age = (Date.now() - ahead - Date.parse(one.dateTime)) / 1000, wasDue = one.dataset.due ||= one.textContent.startsWith("in ") || "";
    const text = Math.abs(age) < 1 || (wasDue && age > 0) ? "now" : age > 0 ? `${rough(age)} ago` : `in ${rough(-age)}`;
    if (one.textContent !== text) one.textContent = text;
  }
}, 1000);

// Actions: <button data-action="POST /jobs/x/retry" data-body='{}' data-confirm="…" data-yes="…">.
const ask = (title, text, yes, isDanger, sample = [], field = "", total = 0) => new Promise((resolve) => {
  const dialog = find("#confirm"), part = (name) => find(`[data-confirm-${name}]`, dialog), rest = total - sample.length;
  find("h2", dialog).textContent = title; part("text").textContent = text; part("field").hidden = !field;
  part("sample").replaceChildren(...sample.concat(rest > 0 ? `and ${grouped(rest)} more` : []).map((one) => make("li", { textContent: one })));
  Object.assign(part("yes"), { textContent: yes, className: isDanger ? "button danger" : "button main" });
  dialog.onclose = () => resolve(dialog.returnValue === "yes"); dialog.returnValue = "no"; dialog.showModal();
});
const call = async (method, path, content, headers = {}) => {
  const options = { method, headers: { Accept: "application/json", ...headers } };
  if (content !== undefined) { options.body = JSON.stringify(content); options.headers["Content-Type"] = "application/json"; }
  let answer;
  try { answer = await fetch(api + path, options); } catch { throw new Error("The server is not responding."); }
  if (answer.status === 401) { location.assign(`${base}/login?next=${encodeURIComponent(location.pathname.slice(base.length) + location.search)}`); throw new Error("Session expired."); }
  const found = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (answer.status === 412) throw headers["If-Match"] ? new Error("Someone else changed this. Reload the page to see how.") : Object.assign(new Error("This name is taken. Choose another one."), { field: "name" });
  if (!answer.ok) throw Object.assign(new Error([...new Set([found.detail || answer.statusText, ...(found.errors || []).map((one) => one.detail)])].join(" ")), { field: found.errors?.[0]?.pointer?.split("/")[1] });
  return { ...found, status_code: answer.status, etag: answer.headers.get("ETag") };
};
const second = () => new Promise((resolve) => setTimeout(resolve, 1000));
const outcome = (id) => id ? [`/dashboard/admin/operations/${id}`, "Results"] : [];
const follow = async (id) => { // an operation, until it has ended
  for (;;) {
    await second();
    const found = await call("GET", `/operations/${id}`).catch(() => null);
    if (found?.ended_at) { toast(found.state === "completed" ? `Done: ${grouped(found.done)} jobs.` : `Operation ${found.state}: ${found.error || ""}`, found.state === "failed", ...outcome(id)); refresh(); return; }
  }
};
// A secret that is shown this once: data-shows names the field of the answer, data-into the place for it.
const reveal = (one, found) => {
  const { shows, into } = one.dataset; if (!shows || !found[shows]) return false;
  const place = find(into), around = place.closest("[data-reveal]");
  place.textContent = found[shows]; around.hidden = false; around.focus(); around.scrollIntoView({ block: "center" });
  find("[data-named]", around).textContent = found.name;
  for (const copy of all("[data-copy]", around)) copy.dataset.copy = found[shows];
  return true;
};
const proceed = ({ then, done = "Done." }) => { // the next page says it
  if (then) { location.assign(then); sessionStorage.said = done; } else refreshNow();
};
const during = async (button, work) => { // a second click does nothing meanwhile
  button.disabled = true;
  try { await work(); return true; } catch (error) { toast(error.message, true); return false; } finally { button.disabled = false; }
};
const act = async (button) => {
  const { action, asks, given: before = "", confirm, detail = "", yes = "Yes", etag, body: sent, done, opens, doing } = button.dataset;
  const [method, path] = action.split(" "), text = find("#confirm-note"); // the dialog asks for a text named `asks`
  if (asks) { text.value = before; find("#confirm-word").textContent = asks[0].toUpperCase() + asks.slice(1); }
  if (confirm && !await ask(confirm, detail, yes, button.matches(".danger"), [], asks)) return;
  const isDone = await during(button, async () => {
    const given = sent && JSON.parse(sent), content = asks ? { ...given, [asks]: text.value } : given;
    const name = asks && find("#confirm-name")?.value.trim(); // who has said no name yet
    if (name) await call("PUT", "/whoami/name", { name });
    const found = await call(method, path, content, etag ? { "If-Match": etag } : {});
    if (found.error) toast(found.error, true); else toast(done || found.message || "Done.", false, opens ? toJob(found.id || opens) : "", "Open the job");
    reveal(button, found);
    if (found.operation) follow(found.operation.id);
    proceed(name ? { then: location.pathname + location.search, done } : button.dataset);
  });
  if (isDone && doing) Object.assign(button, { disabled: true, textContent: doing }); // until the refreshed page says it
};
// A dry run counts, the dialog asks, the action is refused if the count has changed. `question` gives what `ask` takes, or [] for nothing to ask.
const twice = (button, path, order, countOf, question, report) => during(button, async () => {
  const dry = await call("POST", path, { ...order, dry_run: true }), count = countOf(dry), [title, text, yes, isDanger, sample] = question(dry);
  if (title && await ask(title, joined(...text, count > 5 && "Including:"), yes, isDanger, sample, "", count)) { report(await call("POST", path, { ...order, dry_run: false, expect: count }), dry); refreshNow(); }
});
const words = { retry: ["Retry", "retried"], cancel: ["Cancel", "cancelled"], run: ["Run now", "started"], delete: ["Delete", "deleted"] };
// <button data-bulk="retry" data-filter='{…}'>; without a filter the selected rows are meant.
const bulk = (button) => {
  const action = button.dataset.bulk, filter = button.dataset.filter && JSON.parse(button.dataset.filter), [verb, done] = words[action];
  if (!filter && !selected.size) { toast("Select rows first.", true); return; }
  const counted = ({ is_partial, matched }) => `${is_partial ? "at least " : ""}${grouped(matched)} ${matched === 1 ? "job" : "jobs"}`;
  twice(button, "/jobs/actions", { action, ...(filter ? { filter } : { ids: [...selected] }) }, (dry) => dry.matched, (dry) => {
    if (!dry.matched) { toast("No jobs match now."); refresh(); return []; }
    return [`${verb} ${counted(dry)}?`, [action === "cancel" && "Running handlers are asked to stop; their effects are not undone.", /cancel|delete/.test(action) && "Files are not touched."], verb.replace(/^\w+/, "$& them"), button.matches(".danger"), dry.sample.map((one) => one.path || `${one.type || ""} ${one.id}`)];
  }, ({ operation, done: count, refused, action_id }, dry) => {
    if (operation) { toast(`${counted(dry)} are being ${done}.`); follow(operation.id); } else toast(`${grouped(count)} ${done}${refused.length ? `, ${refused.length} refused: ${refused[0].reason}` : ""}.`, refused.length > 0, ...outcome(action_id));
    if (!filter) { selected.clear(); showSelection(); }
  });
};
// Files are enqueued again: <button data-reprocess='{"under":"/in"}'>.
const reprocess = (button) => {
  const plural = (count) => `${count} ${count === 1 ? "file" : "files"}`;
  twice(button, "/files/reprocess", JSON.parse(button.dataset.reprocess), (dry) => dry.enqueued, ({ missing, unfinished, enqueued, files }) => {
    const left = [missing && `${plural(missing)} missing`, unfinished && `${plural(unfinished)} unfinished`].filter(Boolean).join(", ");
    if (!enqueued) { toast(`Nothing to reprocess${left ? `: ${left}` : ""}.`, true); return []; }
    return [`Reprocess ${plural(enqueued)}?`, [left && `Skipped: ${left}.`, enqueued >= 1000 && "At most 1,000 at a time."], "Reprocess", false, files.filter((one) => one.result === "would_enqueue").slice(0, 5).map((one) => one.path)];
  }, (found) => toast(`${plural(found.enqueued)} enqueued again.`));
};

// Uploads: files dropped on <div data-upload="directory/">, or chosen in the input inside it.
const tellFate = async (area, name, query) => { // the list may show the file on a later page only
  const line = make("p", { className: "small" }), state = make("span", { className: "state", textContent: "waiting for the producer" });
  line.append(make("a", { href: `${base}/dashboard/files/trace${query}`, textContent: name })); area.append(line);
  if (all("p", area).length > 5) return; // enough that are followed at the same time
  line.append(" ", state);
  for (let tries = 0; tries < 60 && !/completed|dead|cancelled/.test(state.className); tries++) {
    await second();
    const job = (await call("GET", `/files/trace${query}`).catch(() => ({}))).versions?.[0]?.job;
    if (job) { state.className = `state ${job.status}`; state.textContent = job.status; }
  }
  if (state.className === "state") state.remove(); // no job within a minute, or this key may not know
};
const upload = async (area, files) => {
  for (const file of files) {
    const path = (area.dataset.upload + file.name).split("/").map(encodeURIComponent).join("/");
    try {
      const answer = await fetch(`${api}/uploads/${path}`, { method: "PUT", body: file, headers: { "If-None-Match": "*" } });
      const found = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error(found.detail || answer.statusText);
      toast(`Uploaded ${file.name}.`);
      tellFate(area, file.name, `?path=${encodeURIComponent(found.path)}`);
    } catch (error) { toast(`${file.name}: ${error.message}`, true); }
  }
  refreshNow();
};
const overArea = (name, isOver, react = () => {}) => on(name, (event) => { const area = event.target.closest("[data-upload]"); if (area) { event.preventDefault(); area.classList.toggle("over", isOver); react(area, event); } });
overArea("dragover", true); overArea("dragleave", false); overArea("drop", false, (area, event) => upload(area, event.dataTransfer.files));

// Forms whose fields become a JSON body: <form data-send="PUT /schedules/{name}" data-then="…">. An empty field is left out.
const blame = (form, name, text) => { // beside the wrong field, until it is changed
  const field = name && find(`[name="${CSS.escape(name)}"]:not([type=hidden])`, form); const told = find(`.wrong-${name}`, form); // the preview
  if (!field || told) { toast(told?.textContent || text, true); field?.focus(); return; }
  text = field.dataset.wrong || text;
  const note = make("p", { className: "small bad blame", role: "alert", textContent: text });
  field.after(note); field.ariaInvalid = "true"; field.focus();
  field.addEventListener("input", () => { note.remove(); field.ariaInvalid = null; }, { once: true });
};
const kinds = { json: JSON.parse, number: Number, days: (value) => new Date(Date.now() + value * 864e5).toISOString(), list: (value) => value.split(/[\s,]+/).filter(Boolean) };
const send = async (form) => {
  for (const one of all(".blame", form)) one.remove();
  const data = new FormData(form), fields = Object.fromEntries([...data.keys()].map((name) => [name, data.getAll(name).join(" ")])); // boxes may share a name
  const path = form.dataset.send.replace(/\{(\w+)\}/g, (_, name) => { const value = fields[name] || ""; delete fields[name]; return encodeURIComponent(value); });
  const [method, target] = path.split(" "), content = {}, { etag, isNew, done } = form.dataset;
  for (const [name, value] of Object.entries(fields)) {
    if (value === "") continue;
    const read = kinds[find(`[name="${name}"]`, form).dataset.kind];
    try { content[name] = read ? read(value) : value; } catch { blame(form, name, "Invalid JSON."); return; }
  }
  try {
    const found = await call(method, target, content, etag ? { "If-Match": etag } : isNew ? { "If-None-Match": "*" } : {});
    toast(done || found.message || "Saved.");
    if (reveal(form, found)) form.reset();
    proceed(form.dataset);
  } catch (error) { blame(form, error.field, error.message); }
};

on("submit", (event) => {
  const form = event.target, { asksFirst, detail, yes } = form.dataset;
  if (form.matches("[data-send]")) { event.preventDefault(); send(form); }
  else if (asksFirst) { event.preventDefault(); ask(asksFirst, find("[data-logout]")?.dataset.logout || detail, yes, true).then((isSure) => isSure && form.submit()); }
});
on("change", (event) => {
  const one = event.target;
  if (one.matches("input[data-id], input[data-all]")) { for (const box of one.dataset.id ? [one] : all("input[data-id]")) selected[one.checked ? "add" : "delete"](box.dataset.id); showSelection(); }
  else if (one.matches('[data-do="keys"]')) stored("keys", one.checked ? "on" : "off");
  else if (one.matches("[data-upload] input[type=file]")) upload(one.closest("[data-upload]"), one.files);
  else if (one.matches("[data-submits]")) one.form.requestSubmit();
  else if (one.dataset.ticks) for (const box of all(`[name="${one.dataset.ticks}"]`, one.form)) box.checked = one.value.split(" ").includes(box.value);
});
const openMenu = (isOpen) => { body.classList.toggle("open", isOpen); find(".menu")?.setAttribute("aria-expanded", isOpen); };
const showHelp = () => find("#help").showModal();
const tools = { theme: toggleTheme, live: toggleLive, help: showHelp, menu: () => openMenu(!body.classList.contains("open")) };
on("click", (event) => {
  const one = event.target.closest("[data-action], [data-bulk], [data-reprocess], [data-do], [data-copy], [data-fill]");
  if (!event.target.closest(".top, nav")) openMenu(false);
  if (!one || one.disabled) return;
  if (one.dataset.action) act(one);
  else if (one.dataset.bulk) bulk(one);
  else if (one.dataset.reprocess) reprocess(one);
  else if (one.dataset.copy) navigator.clipboard.writeText(one.dataset.copy).then(() => toast("Copied."), () => toast("Your browser blocked copying.", true));
  else if (one.dataset.fill) { const field = find(one.dataset.fill); field.value = one.value; field.focus(); field.dispatchEvent(new Event("input")); }
  else tools[one.dataset.do]?.();
});

// Keys. `g` waits for a letter.
let here = "", afterG = 0;
const rows = () => all("tr[data-row], article[data-row]");
const mark = () => { for (const row of rows()) row.classList.toggle("here", row.dataset.row === here); };
const move = (step) => { const list = rows(), at = list.findIndex((row) => row.dataset.row === here), row = list[Math.min(list.length - 1, Math.max(0, at + step))]; if (row) { here = row.dataset.row; mark(); row.scrollIntoView({ block: "nearest" }); } };
const inRow = (selector) => { const row = rows().find((one) => one.dataset.row === here); return row && find(selector, row); };
const press = (key) => { const selector = `[data-key="${key}"]`; (inRow(selector) || find(`[data-page-actions] ${selector}`))?.click(); };
on("keydown", (event) => {
  if (stored("keys") === "off" || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (isTyped(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
  if (find("dialog[open]")) return;
  if (Date.now() - afterG < 1500) { afterG = 0; const link = find(`[data-go="${CSS.escape(event.key)}"]`); if (link) { event.preventDefault(); link.click(); } return; }
  const keys = {
    "/": () => find("#search").focus(), g: () => { afterG = Date.now(); }, j: () => move(1), k: () => move(-1),
    x: () => inRow("input[data-id]")?.click(), o: () => inRow("a[href]")?.click(), e: () => press("e"), c: () => press("c"), r: toggleLive, t: toggleTheme, "?": showHelp,
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

for (const box of all('[data-do="keys"]')) box.checked = stored("keys") !== "off";
showLive(); showSelection(); connect();
const { said } = sessionStorage; if (said) { toast(said); delete sessionStorage.said; }
