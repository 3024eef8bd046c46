// Votes on their way to the server. Knows entries, IndexedDB and HTTP; knows no page.
//
// An entry is written down before it is sent and struck out when it is answered, so a dead network, a closed tab or a reload loses none;
// each carries its idempotency key, so that sending it twice makes one vote. They are sent in the order in which they were cast, by one
// tab at a time. An entry that changes another one (`after`) learns that one's vote id from its answer.

const DATABASE = "rlhf-outbox";
const VOTES = "/api/v1/votes";
const SHORTEST_WAIT = 500; // milliseconds
const LONGEST_WAIT = 15_000;
const TIMEOUT = 20_000;
const ANSWERS_KEPT = 3_600_000;

export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // beyond loopback without TLS there is no randomUUID
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

/** Tells by events: `opened`, `state` (what waits and why), `recorded` and `refused` (one entry and what the server said). */
export class Outbox extends EventTarget {
  constructor(user) {
    super();
    this.user = user;
    this.store = null;
    this.unsent = []; // of this user, oldest first
    this.others = 0; // of other logins on this device
    this.isOffline = false;
    this.needsLogin = false;
    this.isDurable = true;
    this.draining = null;
    this.wait = 0;
    this.timer = 0;
    this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("rlhf-outbox") : null;
    this.channel?.addEventListener("message", ({ data }) => this.heard(data));
    addEventListener("online", () => this.hurry());
  }

  async open() {
    try {
      this.store = await Shelf.open();
    } catch {
      this.store = new Pocket();
      this.isDurable = false;
    }
    await this.look();
    this.dispatchEvent(new Event("opened"));
    this.hurry();
  }

  /** The entries that wait, as they lie on this device. */
  async look() {
    const all = await this.store.entries();
    this.unsent = all.filter((entry) => entry.user === this.user);
    this.others = all.length - this.unsent.length;
    this.tell();
  }

  async add(entry) {
    entry.isNew = true; // until it is written down
    this.unsent.push(entry);
    this.tell();
    try {
      await this.store.put(entry);
    } catch {
      // The disk is full or refused: the entry lives as long as this tab.
      this.isDurable = false;
      const pocket = new Pocket();
      for (const one of this.unsent) await pocket.put(one);
      this.store = pocket;
      this.tell();
    }
    this.drain();
  }

  /** Try now, whatever went wrong before. */
  hurry() {
    clearTimeout(this.timer);
    this.wait = 0;
    this.drain();
  }

  drain() {
    if (this.draining) {
      this.again = true;
      return this.draining;
    }
    this.again = false;
    this.draining = this.alone(() => this.sendAll()).finally(() => {
      this.draining = null;
      if (this.again) this.drain();
    });
    return this.draining;
  }

  async alone(work) {
    if (navigator.locks) return navigator.locks.request(`rlhf-outbox:${this.user}`, work);
    return work();
  }

  async sendAll() {
    for (;;) {
      await this.refresh();
      const entry = this.unsent[0];
      if (!entry) return;
      if (!(await this.send(entry))) return;
    }
  }

  /** What another tab sent meanwhile is done; what it added is ours to send too. */
  async refresh() {
    const all = await this.store.entries();
    const known = new Set(all.map((entry) => entry.key));
    const mine = all.filter((entry) => entry.user === this.user);
    const writing = this.unsent.filter((entry) => !known.has(entry.key) && !entry.isDone && entry.isNew);
    this.unsent = [...mine, ...writing];
    this.others = all.length - mine.length;
    this.tell();
  }

  async send(entry) {
    let supersedes = null;
    if (entry.after) {
      supersedes = await this.store.answer(entry.after);
      if (!supersedes && entry.isUndo) {
        await this.strike(entry, "recorded", { vote: null }); // what it would take back was never recorded
        return true;
      }
    }
    let response;
    try {
      response = await fetch(VOTES, {
        method: "POST",
        headers: { "Content-Type": "application/json", "Idempotency-Key": entry.key },
        body: JSON.stringify({ ...entry.body, supersedes }),
        signal: AbortSignal.timeout(TIMEOUT),
      });
    } catch {
      this.later(0, true);
      return false;
    }
    const answer = await response.json().catch(() => null);
    if (response.status === 201 && answer) {
      this.isOffline = this.needsLogin = false;
      this.wait = 0;
      await this.store.keepAnswer(entry.key, answer.vote_id, Date.now() - ANSWERS_KEPT);
      await this.strike(entry, "recorded", { vote: answer });
      return true;
    }
    if (response.status === 401 || response.status === 403) {
      this.needsLogin = true;
      this.later(0, false);
      return false;
    }
    const retryAfter = Number(response.headers.get("Retry-After"));
    if (response.status >= 500 || response.status === 429 || response.status === 408 || retryAfter || !answer) {
      this.later(retryAfter * 1000 || 0, response.status >= 500);
      return false;
    }
    await this.strike(entry, "refused", { status: response.status, problem: answer });
    return true;
  }

  async strike(entry, what, more) {
    entry.isDone = true;
    await this.store.remove(entry.key);
    this.unsent = this.unsent.filter((one) => one.key !== entry.key);
    this.tell();
    this.channel?.postMessage({ what, entry, more });
    this.dispatchEvent(new CustomEvent(what, { detail: { entry, ...more, isOwn: true } }));
  }

  later(milliseconds, isOffline) {
    this.isOffline = isOffline;
    this.wait = Math.min(LONGEST_WAIT, Math.max(SHORTEST_WAIT, this.wait * 2));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.drain(), Math.max(milliseconds, this.wait * (0.75 + Math.random() / 2)));
    this.tell();
  }

  heard({ what, entry, more }) {
    this.unsent = this.unsent.filter((one) => one.key !== entry.key);
    this.tell();
    if (entry.user === this.user) this.dispatchEvent(new CustomEvent(what, { detail: { entry, ...more, isOwn: false } }));
  }

  tell() {
    this.dispatchEvent(new Event("state"));
  }
}

/** On this device, in IndexedDB. */
class Shelf {
  static async open() {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("entries", { keyPath: "n", autoIncrement: true }).createIndex("key", "key", { unique: true });
      request.result.createObjectStore("answers", { keyPath: "key" });
    };
    const shelf = new Shelf();
    shelf.database = await done(request);
    return shelf;
  }

  entries() {
    return done(this.database.transaction("entries").objectStore("entries").getAll());
  }

  put(entry) {
    const { isDone, isNew, ...kept } = entry;
    const transaction = this.database.transaction("entries", "readwrite");
    transaction.objectStore("entries").add(kept);
    return finished(transaction).then(() => {
      entry.isNew = false;
    });
  }

  async remove(key) {
    const transaction = this.database.transaction("entries", "readwrite");
    const found = await done(transaction.objectStore("entries").index("key").getKey(key));
    if (found !== undefined) transaction.objectStore("entries").delete(found);
    return finished(transaction);
  }

  async answer(key) {
    const found = await done(this.database.transaction("answers").objectStore("answers").get(key));
    return found ? found.vote_id : null;
  }

  async keepAnswer(key, vote_id, before) {
    const transaction = this.database.transaction("answers", "readwrite");
    const answers = transaction.objectStore("answers");
    answers.put({ key, vote_id, at: Date.now() });
    const cursor = answers.openCursor();
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      if (cursor.result.value.at < before) cursor.result.delete();
      cursor.result.continue();
    };
    return finished(transaction);
  }
}

/** In memory, where the browser gives no place on the device. */
class Pocket {
  constructor() {
    this.kept = new Map();
    this.answers = new Map();
  }

  async entries() {
    return [...this.kept.values()];
  }

  async put(entry) {
    this.kept.set(entry.key, entry);
    entry.isNew = false;
  }

  async remove(key) {
    this.kept.delete(key);
  }

  async answer(key) {
    return this.answers.get(key) ?? null;
  }

  async keepAnswer(key, vote_id) {
    this.answers.set(key, vote_id);
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}
