// Unsent votes, stored in IndexedDB until the server has answered.
//
// An entry is written down before it is sent and removed when it is answered, so a dead network,
// a closed tab or a reload loses none; each carries its idempotency key, so that sending it twice
// makes one vote. They are sent in the order in which they were cast, by one tab at a time; one
// that the server does not take now lets the others pass and is tried again, until the person
// discards it. An entry that changes another one (`after`) goes after it, and an undo learns from
// that one's answer which vote it takes back. Ratings wait among the votes; an undo names theirs by
// its key.

const DATABASE = "rlhf-outbox";
const VOTES = "/api/v1/votes";
const RATINGS = "/api/v1/ratings";
const WAITS = { shortest: 500, longest: 15_000 }; // milliseconds between two tries
const TIMEOUT = 20_000;
const ANSWERS_KEPT = 3_600_000;
const OTHER_LOGIN = "urn:rlhf:problem:other_login";

export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // beyond loopback without TLS there is no randomUUID
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

/** Whether a refusal is for the login, which another one mends; a 403 for what this login may not
 * do is for the vote. */
export function isLogin(status, kind) {
  return status === 401 || (status === 403 && kind === OTHER_LOGIN);
}

/** Tells by events: `opened`, `state` (what waits and why), `recorded`, `refused` (one entry and
 * what the server said), `discarded`. */
export class Outbox extends EventTarget {
  constructor(user, waits = WAITS) {
    super();
    this.user = user;
    this.waits = waits;
    this.store = null;
    this.unsent = []; // of this user, oldest first
    this.others = 0; // of other logins on this device
    this.isOffline = false;
    this.needsLogin = false;
    this.isOtherLogin = false; // somebody else is, by another tab
    this.reason = null; // why entries wait, where it is neither the network nor the login
    this.isDurable = true;
    this.aside = new Map(); // key -> reason: not taken now, tried again when the time comes
    // key -> status and detail of those set aside because the server does not take them, perhaps
    // never
    this.refusals = new Map();
    this.draining = null;
    this.wait = 0;
    this.timer = 0;
    this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("rlhf-outbox") : null;
    this.channel?.addEventListener("message", ({ data }) => this.onMessage(data));
    addEventListener("online", () => this.hurry());
  }

  async open() {
    try {
      this.store = await OutboxStore.open();
      await this.refresh();
    } catch {
      this.store = new MemoryStore();
      this.isDurable = false;
      await this.refresh();
    }
    this.dispatchEvent(new Event("opened"));
    this.hurry();
  }

  async add(entry) {
    entry.isNew = true; // until it is written down
    this.unsent.push(entry);
    this.emitState();
    try {
      await this.store.put(entry);
    } catch {
      // The disk is full or storage is refused: the entry lives as long as this tab.
      this.isDurable = false;
      const memoryStore = new MemoryStore(this.store);
      for (const one of this.unsent) await memoryStore.put(one);
      this.store = memoryStore;
      this.emitState();
    }
    this.drain();
  }

  /** Retry now, whatever failed before. */
  hurry() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.wait = 0;
    this.aside.clear();
    this.drain();
  }

  /** Let go of an entry that the server does not take. One that was taken meanwhile is a vote, and
   * stays one.
   *
   * Of one that takes a vote back, also of all that waits to be cast in that vote's place: the
   * server would refuse it, the vote stands. */
  async discard(key) {
    await this.draining;
    await this.alone(async () => {
      const all = await this.store.entries();
      const entry = all.find((one) => one.key === key);
      if (!entry) return;
      const entries = [...all, ...this.unsent]; // before any is removed
      const dependants = entry.isUndo ? after(entry, all) : [];
      for (const one of [...dependants].reverse().concat(entry)) {
        const isDependant = one !== entry;
        const more = { isDependant, dependants: isDependant ? [] : dependants };
        await this.remove(one, "discarded", { ...more, isTakenBack: isTakenBack(one, entries) });
      }
    });
    this.hurry();
  }

  /** What waits, as `POST votes:batch` takes it: votes that were taken back meanwhile and their
   * undos left out, which no batch can tell the one from the other. Where the vote that is taken
   * back was sent, its undo goes first; what is cast anew replaces it by itself. */
  async votes() {
    const isWaiting = new Set(this.unsent.map((entry) => entry.key));
    const votes = [];
    const isFirst = (entry) => !isOfRating(entry) && !isWaiting.has(entry.after);
    for (const first of this.unsent.filter(isFirst)) {
      const supersedes = first.isUndo ? await this.store.answer(first.after) : null;
      const last = after(first, this.unsent).at(-1) ?? first;
      const sent = supersedes ? [first] : [];
      if (!last.isUndo) sent.push(last);
      for (const { key, body, isUndo } of sent)
        votes.push({ idempotency_key: key, ...body, supersedes: isUndo ? supersedes : null });
    }
    return votes;
  }

  /** The ratings that wait, each as `POST ratings` takes it beside its key. */
  get ratings() {
    return this.unsent.filter(isOfRating).map(({ key, body, isUndo, after: undone }) => {
      return { idempotency_key: key, ...body, supersedes: isUndo ? undone : null };
    });
  }

  /** The server accepts this login (again). */
  welcome() {
    if (!this.needsLogin) return;
    this.needsLogin = false;
    this.emitState();
    this.hurry();
  }

  /** The server requires a login, or another one. */
  refuseLogin(kind) {
    this.needsLogin = true;
    this.isOtherLogin = kind === OTHER_LOGIN;
    this.emitState();
  }

  drain() {
    if (this.draining) {
      this.again = true;
      return this.draining;
    }
    this.again = false;
    this.draining = this.alone(() => this.sendAll())
      .catch((error) => {
        this.reason = broken(error);
        this.later(0, false);
      })
      .finally(() => {
        this.draining = null;
        if (this.again) this.drain();
      });
    return this.draining;
  }

  async alone(work) {
    return navigator.locks?.request(`rlhf-outbox:${this.user}`, work) ?? work();
  }

  async sendAll() {
    for (;;) {
      await this.refresh();
      const waiting = new Set(this.unsent.map((one) => one.key));
      const entry = this.unsent.find((one) => !this.aside.has(one.key) && !waiting.has(one.after));
      if (!entry) break;
      try {
        if (!(await this.send(entry))) return;
      } catch (error) {
        // its place on the device failed: what was sent is sent again under its key
        this.aside.set(entry.key, broken(error));
      }
    }
    const stuck = this.unsent.find((one) => this.aside.has(one.key));
    this.reason = stuck ? this.aside.get(stuck.key) : null;
    // votes that are cast meanwhile do not delay it
    if (stuck && !this.timer) this.later(0, false);
    else this.emitState();
  }

  /** Take over the entries that this device stores: those of other tabs, without what they sent. */
  async refresh() {
    // written down after the store was read, some are new no more
    const wasWriting = new Set(this.unsent.filter((entry) => entry.isNew));
    const all = await this.store.entries();
    const keys = new Set(all.map((entry) => entry.key));
    const mine = all.filter((entry) => entry.user === this.user);
    const writing = this.unsent.filter(
      (entry) => !keys.has(entry.key) && !entry.isDone && (entry.isNew || wasWriting.has(entry)),
    );
    this.unsent = [...mine, ...writing];
    this.others = all.length - mine.length;
    this.emitState();
  }

  /** Whether the server decided on the entry. */
  async send(entry) {
    // A vote cast anew says nothing of the undo before it: the server knows that, and in the file
    // of what waits it is the same vote.
    const supersedes = entry.isUndo ? await this.store.answer(entry.after) : null;
    if (entry.isUndo && !supersedes) {
      // the vote that it would undo was never recorded
      await this.remove(entry, "recorded", { vote: null });
      return true;
    }
    const response = await fetch(isOfRating(entry) ? RATINGS : VOTES, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "Idempotency-Key": entry.key,
        "X-Annotator": entry.user,
      },
      body: JSON.stringify({ ...entry.body, supersedes }),
      signal: AbortSignal.timeout(TIMEOUT),
    }).catch(() => null);
    if (!response) return this.later(0, true);
    const { status } = response;
    const answer = await response.json().catch(() => null);
    const detail = answer?.detail ?? `The server answers with status ${status}.`;
    if (status === 201 && answer) {
      this.isOffline = this.needsLogin = false;
      if (!this.aside.size) this.wait = 0;
      const name = answer.vote_id ?? entry.key;
      await this.store.keepAnswer(entry.key, name, Date.now() - ANSWERS_KEPT);
      await this.remove(entry, "recorded", { vote: answer });
      return true;
    }
    if (isLogin(status, answer?.type)) {
      this.refuseLogin(answer?.type);
      return this.later(0, false);
    }
    const retryAfter = Number(response.headers.get("Retry-After"));
    if (status >= 500 || status === 429 || status === 408 || retryAfter || !answer) {
      if (status < 500) this.reason = detail;
      return this.later(retryAfter * 1000 || 0, status >= 500);
    }
    if (status === 422 || (status === 409 && !entry.after)) {
      // For what the vote is: sending it again would change nothing. Of all else nobody knows that,
      // and the vote is kept; so is one that comes too late to change another, as after an hour
      // without a network, until the person has seen that.
      await this.remove(entry, "refused", {
        status,
        problem: answer,
        dependants: after(entry, this.unsent),
        isTakenBack: isTakenBack(entry, this.unsent),
      });
    } else {
      this.isOffline = this.needsLogin = false;
      this.aside.set(entry.key, detail);
      this.refusals.set(entry.key, { status, detail });
    }
    return true;
  }

  async remove(entry, what, more) {
    entry.isDone = true;
    await this.store.remove(entry.key);
    this.refusals.delete(entry.key);
    this.unsent = this.unsent.filter((one) => one.key !== entry.key);
    this.emitState();
    this.channel?.postMessage({ what, entry, more });
    this.dispatchEvent(new CustomEvent(what, { detail: { entry, ...more, isOwn: true } }));
  }

  /** Try again after a pause; returns false, as what was sent was not answered. */
  later(milliseconds, isOffline) {
    this.isOffline = isOffline;
    this.wait = Math.min(this.waits.longest, Math.max(this.waits.shortest, this.wait * 2));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.timer = 0;
      this.aside.clear();
      this.drain();
    }, Math.max(milliseconds, this.wait * (0.75 + Math.random() / 2)));
    this.emitState();
    return false;
  }

  onMessage({ what, entry, more }) {
    this.unsent = this.unsent.filter((one) => one.key !== entry.key);
    this.refusals.delete(entry.key);
    // All tabs share one cookie, so a login in one tab applies to all.
    const isMine = entry.user === this.user;
    if (isMine && what === "recorded") this.needsLogin = false;
    this.emitState();
    const detail = { entry, ...more, isOwn: false };
    if (isMine) this.dispatchEvent(new CustomEvent(what, { detail }));
  }

  emitState() {
    this.dispatchEvent(new Event("state"));
  }
}

/** Stores entries on this device, in IndexedDB. */
class OutboxStore {
  static async open() {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      request.result
        .createObjectStore("entries", { keyPath: "n", autoIncrement: true })
        .createIndex("key", "key", { unique: true });
      request.result.createObjectStore("answers", { keyPath: "key" });
    };
    const stored = new OutboxStore();
    stored.database = await done(request);
    return stored;
  }

  entries() {
    return done(this.database.transaction("entries").objectStore("entries").getAll());
  }

  put(entry) {
    const { isDone, isNew, ...stored } = entry;
    const transaction = this.database.transaction("entries", "readwrite");
    transaction.objectStore("entries").add(stored);
    return finished(transaction).then(() => (entry.isNew = false));
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

  /** And let go of those from `before`, but for what an entry of any login still waits to
   * change. */
  async keepAnswer(key, vote_id, before) {
    const transaction = this.database.transaction(["answers", "entries"], "readwrite");
    const answers = transaction.objectStore("answers");
    answers.put({ key, vote_id, at: Date.now() });
    const waiting = transaction.objectStore("entries").getAll();
    waiting.onsuccess = () => {
      const needed = new Set(waiting.result.map((entry) => entry.after));
      const cursor = answers.openCursor();
      cursor.onsuccess = () => {
        if (!cursor.result) return;
        if (cursor.result.value.at < before && !needed.has(cursor.result.key))
          cursor.result.delete();
        cursor.result.continue();
      };
    };
    return finished(transaction);
  }
}

/** Stores entries in memory if the browser offers no storage. */
class MemoryStore {
  constructor(before = null) {
    this.entriesByKey = new Map();
    this.answers = new Map();
    this.before = before; // where answers were kept until now
  }

  async entries() {
    return [...this.entriesByKey.values()];
  }

  async put(entry) {
    this.entriesByKey.set(entry.key, entry);
    entry.isNew = false;
  }

  async remove(key) {
    this.entriesByKey.delete(key);
  }

  async answer(key) {
    return this.answers.get(key) ?? (await this.before?.answer(key)) ?? null;
  }

  async keepAnswer(key, vote_id) {
    this.answers.set(key, vote_id);
  }
}

/** The entries that change an entry, and those that change these, in the order of the changes. */
function after(entry, all) {
  const found = all.filter((one) => one.after === entry.key);
  return found.flatMap((one) => [one, ...after(one, all)]);
}

const isOfRating = ({ body }) => "value" in body;

function isTakenBack(entry, all) {
  return all.some((one) => one.isUndo && one.after === entry.key);
}

function broken(error) {
  if (!(error instanceof DOMException)) reportError(error); // a bug, and tried again all the same
  return `This browser's storage failed (${error?.name ?? error}).`;
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
