'use strict';

// The page asks api/status once a second and takes rates from the counters of
// two answers. The answers' uptime is the clock, so that a late answer does not
// look like a slow node.

const span = 120;     // seconds that the charts show
const recent = 10;    // seconds of "last 10 s"
const every = 1000;   // ms between questions
const patience = 5000; // ms that an answer may take

const byId = (id) => document.getElementById(id);

// --- numbers for people --------------------------------------------------

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const none = '–';

const count = (n) => whole.format(n);
const rate = (n) => (n === null ? none : n < 10 && n > 0 ? n.toFixed(1) : whole.format(n));

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return (i === 0 ? whole.format(n) : n.toFixed(1)) + ' ' + units[i];
}

// part of all as a percentage. Only what is whole is shown as 100%.
function percent(part, all) {
  if (all <= 0) {
    return none;
  }
  const p = (100 * part) / all;
  return (part < all ? Math.min(p, 99.9) : p).toFixed(1) + '%';
}

function duration(s) {
  for (const [unit, size] of [['s', 1], ['ms', 1e-3], ['µs', 1e-6]]) {
    if (s >= size) {
      const v = s / size;
      return (v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : whole.format(v)) + ' ' + unit;
    }
  }
  return whole.format(s * 1e9) + ' ns';
}

function age(s) {
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  if (d > 0) {
    return `${count(d)} d ${h} h`;
  }
  if (h > 0) {
    return `${h} h ${m} min`;
  }
  return m > 0 ? `${m} min ${Math.floor(s) % 60} s` : `${Math.floor(s)} s`;
}

// --- writing into the page ----------------------------------------------

function put(id, text, title) {
  const el = byId(id);
  if (el.textContent !== text) {
    el.textContent = text;
  }
  if (title !== undefined && el.title !== title) {
    el.title = title;
  }
}

const putBytes = (id, n) => put(id, bytes(n), count(n) + ' bytes');

// alarm marks a counter of what should not happen.
function alarm(id, n) {
  put(id, count(n));
  byId(id).classList.toggle('more', n > 0);
}

function bar(name, part, all) {
  const p = all > 0 ? Math.min(100, (100 * part) / all) : 0;
  byId(name + '-fill').style.width = p + '%';
  byId(name + '-bar').setAttribute('aria-valuenow', p.toFixed(1));
  byId(name + '-bar').setAttribute('aria-valuetext', p.toFixed(1) + '%');
}

// row makes a row of a table when it is new. columns are pairs of the end of a
// cell's id and its class, in the order of the table's head.
function row(body, id, name, columns) {
  if (!byId(id)) {
    const tr = document.createElement('tr');
    tr.id = id;
    const th = document.createElement('th');
    th.scope = 'row';
    th.textContent = name;
    tr.append(th);
    for (const [end, kind] of columns) {
      const td = document.createElement('td');
      td.id = `${id}-${end}`;
      td.className = kind;
      tr.append(td);
    }
    body.append(tr);
  }
}

// --- charts --------------------------------------------------------------

const svgNS = 'http://www.w3.org/2000/svg';

function shape(parent, tag, attributes, text) {
  const el = document.createElementNS(svgNS, tag);
  for (const k in attributes) {
    el.setAttribute(k, attributes[k]);
  }
  if (text !== undefined) {
    el.textContent = text;
  }
  parent.append(el);
}

// niceAbove is the first of 1, 2, 5, 10, 20 ... that is not below v.
function niceAbove(v) {
  const power = Math.pow(10, Math.floor(Math.log10(Math.max(v, 1))));
  return [1, 2, 5, 10].map((k) => k * power).find((n) => n >= v);
}

// Chart draws {t, v} points of the last span seconds; v null is a gap.
class Chart {
  constructor(id, what, format, tick, max) {
    Object.assign(this, { svg: byId(id), what, format, tick, max, points: [], pointer: null });
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.svg.addEventListener('pointermove', (e) => {
      this.pointer = e.offsetX;
      this.draw();
    });
    this.svg.addEventListener('pointerleave', () => {
      this.pointer = null;
      this.draw();
    });
  }

  add(t, v) {
    this.points.push({ t, v });
    while (this.points[0].t < t - span) {
      this.points.shift();
    }
    this.draw();
  }

  // gap ends the line where the node went away.
  gap() {
    const last = this.points.at(-1);
    if (last && last.v !== null) {
      this.add(last.t, null);
    }
  }

  reset() {
    this.points = [];
    this.draw();
  }

  draw() {
    const { svg, points } = this;
    const box = svg.getBoundingClientRect();
    const left = 40, right = box.width - 8, top = 8, bottom = box.height - 20;
    svg.replaceChildren();
    if (right <= left) {
      return;
    }
    svg.setAttribute('viewBox', `0 0 ${box.width} ${box.height}`);
    const known = points.filter((p) => p.v !== null);
    const max = this.max ?? niceAbove(Math.max(...known.map((p) => p.v), 1));
    const now = points.length ? points.at(-1).t : 0;
    const x = (t) => right - ((now - t) / span) * (right - left);
    const y = (v) => bottom - (v / max) * (bottom - top);

    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(part * max)) + 0.5;
      shape(svg, 'line', { class: 'grid', x1: left, x2: right, y1: at, y2: at });
      shape(svg, 'text', { x: left - 8, y: at + 4, 'text-anchor': 'end' }, this.tick(part * max));
    }
    shape(svg, 'text', { x: left, y: box.height - 3 }, '2 min ago');
    shape(svg, 'text', { x: (left + right) / 2, y: box.height - 3, 'text-anchor': 'middle' }, '1 min ago');
    shape(svg, 'text', { x: right, y: box.height - 3, 'text-anchor': 'end' }, 'now');

    for (const run of runs(points)) {
      const line = run.map((p) => `${x(p.t).toFixed(1)},${y(p.v).toFixed(1)}`);
      const from = x(run[0].t).toFixed(1), to = x(run.at(-1).t).toFixed(1);
      shape(svg, 'path', { class: 'area', d: `M${from},${bottom} L${line.join(' ')} L${to},${bottom} Z` });
      shape(svg, 'polyline', { class: 'line', points: line.join(' ') });
    }
    const last = known.at(-1);
    if (last) {
      shape(svg, 'circle', { class: 'dot', cx: x(last.t), cy: y(last.v), r: 4 });
    }
    if (this.pointer !== null && known.length) {
      const near = known.reduce((a, b) => (Math.abs(x(b.t) - this.pointer) < Math.abs(x(a.t) - this.pointer) ? b : a));
      // Where the line is not, most likely: beside the cross, in the other half.
      const at = x(near.t), before = at > (left + right) / 2, low = near.v > max / 2;
      shape(svg, 'line', { class: 'cross', x1: at, x2: at, y1: top, y2: bottom });
      shape(svg, 'circle', { class: 'dot', cx: at, cy: y(near.v), r: 4 });
      shape(svg, 'text', { class: 'readout', x: before ? at - 10 : at + 10, y: low ? bottom - 8 : top + 14, 'text-anchor': before ? 'end' : 'start' },
        `${this.format(near.v)}, ${Math.round(now - near.t)} s ago`);
    }
    svg.setAttribute('aria-label', `${this.what} over the last two minutes: ` + (known.length
      ? `now ${this.format(last.v)}, lowest ${this.format(Math.min(...known.map((p) => p.v)))}, highest ${this.format(Math.max(...known.map((p) => p.v)))}`
      : 'no data yet'));
  }
}

// runs cuts points at the gaps.
function runs(points) {
  const out = [];
  let open = null;
  for (const p of points) {
    if (p.v === null) {
      open = null;
    } else if (open) {
      open.push(p);
    } else {
      out.push((open = [p]));
    }
  }
  return out;
}

const hitChart = new Chart('hit-chart', 'Hit ratio', (v) => v.toFixed(1) + '%', (v) => v + '%', 100);
const opsChart = new Chart('ops-chart', 'Operations a second', (v) => rate(v) + ' a second', (v) => short.format(v));

// --- what the node says ----------------------------------------------------

let history = []; // answers of the last `recent` seconds, the latest last
let started = null; // of the process that gave them

// perSecond returns how much a counter grew from one answer to another, a second.
function perSecond(from, to, counter) {
  const seconds = from ? to.uptime_seconds - from.uptime_seconds : 0;
  return seconds > 0 ? Math.max(0, counter(to) - counter(from)) / seconds : null;
}

// hitRatio is the percentage of lookups between two answers that hit; null
// without lookups.
function hitRatio(from, to) {
  const hits = to.cache.hits_total - from.cache.hits_total;
  const lookups = hits + to.cache.misses_total - from.cache.misses_total;
  return lookups > 0 ? (100 * hits) / lookups : null;
}

function show(st) {
  if (started !== st.started) {
    started = st.started;
    history = [];
    hitChart.reset();
    opsChart.reset();
  } else if (history.at(-1)?.uptime_seconds === st.uptime_seconds) {
    return; // the same snapshot again
  }
  const before = history.at(-1);
  history.push(st);
  while (history.length > 2 && history[1].uptime_seconds <= st.uptime_seconds - recent) {
    history.shift();
  }

  put('uptime', age(st.uptime_seconds), 'since ' + new Date(st.started).toLocaleString());
  put('version', st.version);
  showState(st);
  showOperations(st, before);
  showConnections(st, before);
  showShared(st.shared_memory);
  showPeers(st.peers);
  showRouter(st.router);
  if (!st.engine_error) { // else its numbers stay as they were last
    showHits(st, before);
    showMemory(st);
    showNamespaces(st);
    showHints(st.hints);
  }
  byId('pprof').hidden = !st.debug;
}

function showHits(st, before) {
  const { hits_total: hits, misses_total: misses } = st.cache;
  put('hit-ratio', percent(hits, hits + misses));
  put('hits-total', count(hits));
  put('misses-total', count(misses));
  if (before) {
    const now = hitRatio(history[0], st);
    put('hit-ratio-recent', now === null ? 'no lookups' : now.toFixed(1) + '%');
    hitChart.add(st.uptime_seconds, hitRatio(before, st));
  }
}

function showState(st) {
  pill(st.ready ? 'good' : 'warn', st.ready ? 'ready' : 'not ready');
  const parts = [];
  if (!st.ready && st.reason) {
    parts.push('Not ready: ' + st.reason + '.');
  }
  if (st.engine_error) {
    parts.push('The engine gives no counters: ' + st.engine_error + '.');
  }
  notice(parts.join(' '));
}

function showMemory(st) {
  const m = st.memory;
  put('mem-percent', percent(m.used_bytes, m.capacity_bytes));
  putBytes('mem-used', m.used_bytes);
  putBytes('mem-capacity', m.capacity_bytes);
  bar('mem', m.used_bytes, m.capacity_bytes);
  put('blocks', count(st.cache.blocks));
  putBytes('mem-payload', m.payload_bytes);
  putBytes('mem-metadata', m.metadata_bytes);
  putBytes('mem-reserved', m.reserved_bytes);
  if (m.limit_bytes > 0) {
    putBytes('mem-limit', m.limit_bytes);
  } else {
    put('mem-limit', 'unknown', '');
  }
  byId('mem-limit-name').title = m.limit_source ? 'read from ' + m.limit_source : '';
  if (m.go_limit_bytes > 0) {
    putBytes('mem-go-limit', m.go_limit_bytes);
  } else {
    put('mem-go-limit', 'none', '');
  }
}

function showConnections(st, before) {
  const c = st.connections;
  const flow = (id, counter) => {
    const n = perSecond(before, st, (s) => s.connections[counter]);
    put(id, n === null ? none : bytes(n) + '/s', count(c[counter]) + ' bytes since the start');
  };
  put('conns-open', count(c.open));
  put('conns-max', c.max > 0 ? count(c.max) : 'any number');
  bar('conns', c.open, c.max);
  flow('in-rate', 'received_bytes_total');
  flow('out-rate', 'sent_bytes_total');
  put('claims', count(c.claims));
  put('conns-accepted', count(c.accepted_total));
  alarm('conns-refused', c.refused_total);
  alarm('conns-slow', c.slow_total);
}

function showShared(s) {
  put('shared-clients', count(s.clients), count(s.connections) + ' connections');
  put('shared-gets', count(s.gets_total));
  put('shared-hits', count(s.hits_total));
  putBytes('shared-lent', s.lent_bytes_total);
  put('shared-claims', count(s.claims));
  put('shared-left', count(s.claims_left), 'kept until the process has ended');
  putBytes('shared-staging', s.staging_bytes);
  put('shared-commits', count(s.commits_total), count(s.committed_bytes_total) + ' bytes');
  alarm('shared-dropped', s.dropped_clients_total);
}

function showPeers(p) {
  byId('peers-card').hidden = !p;
  if (!p) {
    return;
  }
  const traffic = (id, way) => {
    const routes = p.routes.filter((r) => r[way].blocks_total > 0).map((r) => `${r.route}: ${count(r[way].blocks_total)} blocks, ${bytes(r[way].bytes_total)}`);
    put(id, count(p[way].blocks_total), routes.join('\n'));
    putBytes(id + '-bytes', p[way].bytes_total);
  };
  traffic('peers-in', 'fetched');
  traffic('peers-out', 'served');
  put('peers-taken', count(p.taken.moved_total));
  put('peers-given', count(p.given.moved_total));
  put('peers-kept', count(p.taken.kept_total + p.given.kept_total), `hither ${count(p.taken.kept_total)}, away ${count(p.given.kept_total)}`);
  alarm('peers-refused', p.refusals_total + p.refused_connections_total);
  putBytes('peers-quarantine', p.quarantined_bytes);
  byId('peers-quarantine').classList.toggle('more', p.quarantined_bytes > 0);
  put('peers-endpoints', p.endpoints.join(', ') || 'no address');
  put('peers-more', p.total > p.peers.length ? `${count(p.peers.length)} of ${count(p.total)} are shown.` : '');

  const body = byId('peers');
  const columns = [['endpoint', 'word'], ['route', 'word'], ['connected', 'word'], ['ops', ''], ['blocks', ''], ['bytes', '']];
  const known = new Set();
  for (const peer of p.peers) {
    const id = 'peer-' + peer.id;
    known.add(id);
    row(body, id, '', columns);
    const head = byId(id).firstChild;
    if (head.textContent !== (peer.name || none)) {
      head.textContent = peer.name || none; // it may come with a later connection
    }
    put(id + '-endpoint', peer.fetching ? peer.endpoint : 'fetches from here');
    put(id + '-route', peer.route);
    put(id + '-connected', peer.connected ? 'yes' : 'no', peer.error || '');
    byId(id + '-connected').classList.toggle('more', Boolean(peer.error));
    put(id + '-ops', count(peer.operations));
    put(id + '-blocks', count(peer.traffic.blocks_total));
    putBytes(id + '-bytes', peer.traffic.bytes_total);
  }
  for (const tr of [...body.children]) {
    if (!known.has(tr.id)) {
      tr.remove(); // forgotten by the node
    }
  }
}

function showHints(h) {
  byId('hints-card').hidden = !h;
  if (!h) {
    return;
  }
  put('hints-accepted', count(h.accepted_total));
  alarm('hints-rejected', h.rejected_total);
  alarm('hints-malformed', h.malformed_total);
  const a = h.advice;
  put('hints-advice', count(a.requests), `${count(a.hashes)} hashes\nforgotten: ${count(a.discarded_total)} as told, ${count(a.expired_total)} by age, ${count(a.pushed_total)} for newer ones`);
  put('hints-fetching', count(h.blocks.fetching), `${count(h.blocks.joined_total)} were on their way already`);
  put('hints-actions', count(h.work.actions));
  put('hints-blocks', count(h.work.blocks));
  putBytes('hints-bytes', h.work.bytes);
  alarm('hints-lost', h.outcomes_lost_total);
  for (const t of h.types) {
    const id = 'hints-' + t.type;
    row(byId('hints'), id, t.type, [['accepted', ''], ['rejected', ''], ['why', 'word']]);
    byId(id).hidden = t.accepted_total + t.rejected_total === 0;
    put(id + '-accepted', count(t.accepted_total));
    alarm(id + '-rejected', t.rejected_total);
    put(id + '-why', Object.entries(t.rejected ?? {}).map(([why, n]) => `${why} ${count(n)}`).join(', ') || none);
  }
  byId('hints').closest('.scroll').hidden = h.accepted_total + h.rejected_total === 0;
  const stages = h.stages.filter((s) => s.outcomes_total > 0).map((s) => `${s.stage} ${count(s.outcomes_total)}`);
  put('hints-outcomes', stages.join(', ') || 'none');
}

function showRouter(r) {
  byId('router-card').hidden = !r;
  if (!r) {
    return;
  }
  put('router-keys', count(r.table.keys));
  put('router-ambiguous', count(r.table.ambiguous_hashes));
  put('router-described', count(r.table.described), `${count(r.table.pending_descriptions)} of blocks that are not here yet\n${bytes(r.table.token_bytes)} of tokens`);
  for (const el of byId('router-card').querySelectorAll('.told')) {
    el.hidden = !r.published;
  }
  if (!r.published) {
    return;
  }
  const p = r.published;
  put('router-batches', count(p.batches_total), `${count(p.events_total)} events`);
  put('router-stored', count(p.stored_blocks_total));
  put('router-removed', count(p.removed_blocks_total));
  put('router-undescribed', count(p.undescribed_blocks_total));
  alarm('router-gaps', p.gaps_total);
  for (const [id, name, e] of [['router-events', 'vLLM', r.events], ['router-plane', 'Dynamo', r.plane]]) {
    if (!e) {
      byId(id)?.remove(); // of the process before
      continue;
    }
    row(byId('router'), id, name, [['endpoint', 'word'], ['subscribers', ''], ['messages', ''], ['dropped', ''], ['replays', '']]);
    put(id + '-endpoint', e.endpoint || none, e.replay_endpoint ? 'replays at ' + e.replay_endpoint : '');
    put(id + '-subscribers', count(e.subscribers));
    put(id + '-messages', count(e.messages_total));
    alarm(id + '-dropped', e.dropped_total);
    put(id + '-replays', e.replay_endpoint ? count(e.replays_total) : none);
  }
}

function showOperations(st, before) {
  const ends = [['proto', 'word'], ...['rate', 'p50', 'p99', 'p999', 'max', 'calls', 'errors'].map((end) => [end, ''])];
  const time = (latency, q) => (latency.count ? duration(latency[q + '_seconds']) : none);
  const line = (id, name, proto, c, calls, counter) => {
    row(byId('commands'), id, name, ends);
    byId(id).hidden = calls + c.errors_total === 0 && proto !== '';
    put(id + '-proto', proto);
    put(id + '-rate', rate(perSecond(before, st, counter)));
    put(id + '-calls', count(calls));
    alarm(id + '-errors', c.errors_total);
    for (const q of ['p50', 'p99', 'p999', 'max']) {
      put(`${id}-${q}`, time(c.recent_latency, q), 'since the start: ' + time(c.latency, q));
    }
  };
  const { commands, total, errors_total } = st.operations;
  const ops = perSecond(before, st, (s) => s.operations.total);
  put('ops-rate', rate(ops));
  put('ops-total', count(total));
  alarm('errors-total', errors_total);
  put('latency-p99', time(st.operations.recent_latency, 'p99'), 'since the start: ' + time(st.operations.latency, 'p99'));
  if (before) {
    opsChart.add(st.uptime_seconds, ops);
  }
  commands.forEach((c, i) => line(`cmd-${c.proto}-${c.name}`, c.name, c.proto, c, c.calls_total, (s) => s.operations.commands[i].calls_total));
  line('cmd-all', 'all', '', st.operations, total, (s) => s.operations.total);
}

function showNamespaces(st) {
  const body = byId('namespaces');
  const columns = [['blocks', ''], ['bytes', ''], ['used', ''], ['evicted', ''], ['refused', ''], ['dropped', ''], ['shards', ''],
    ['kind', 'word'], ['policy', 'word'], ['pages', 'word']];
  for (const n of st.namespaces) {
    const id = 'ns-' + n.name;
    row(body, id, n.name, columns);
    put(id + '-blocks', count(n.blocks), 'of at most ' + count(n.max_blocks));
    putBytes(id + '-bytes', n.payload_bytes);
    put(id + '-used', percent(n.used_bytes, n.capacity_bytes), `${bytes(n.used_bytes)} of ${bytes(n.capacity_bytes)}`);
    put(id + '-evicted', count(n.evicted_total));
    alarm(id + '-refused', n.refused_total + n.index_full_total);
    put(id + '-dropped', count(n.dropped_total));
    put(id + '-shards', count(n.shards), n.pinned_owners ? `${n.pinned_owners} pinned to CPUs` : '');
    put(id + '-kind', n.kind);
    put(id + '-policy', n.policy);
    put(id + '-pages', n.pages);
  }
}

function pill(kind, text) {
  put('state', text);
  byId('state').className = 'pill ' + kind;
}

function notice(text) {
  put('notice', text);
  byId('notice').hidden = text === '';
}

// --- asking ----------------------------------------------------------------

let goneSince = null;

function gone() {
  if (goneSince === null) {
    goneSince = new Date();
    document.title = 'No answer – KVCR node';
    pill('bad', 'no answer');
    notice(`The node has not answered since ${goneSince.toLocaleTimeString()}. What is below is from before. Asking again every second.`);
    byId('main').classList.add('stale');
    hitChart.gap();
    opsChart.gap();
  }
}

function back() {
  if (goneSince !== null) {
    goneSince = null;
    document.title = 'KVCR node';
    byId('main').classList.remove('stale');
    history = []; // rates over the time without answers would say little
  }
}

async function ask() {
  try {
    const answer = await fetch('api/status', { cache: 'no-store', signal: AbortSignal.timeout(patience) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // no connection, no answer in time, or no JSON
  }
}

async function poll() {
  const began = performance.now();
  const st = await ask();
  // Before show: an error in it must not end the questions.
  setTimeout(poll, Math.max(0, every - (performance.now() - began)));
  if (st === null) {
    gone();
  } else {
    back();
    show(st);
  }
}

poll();
