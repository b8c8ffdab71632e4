// The connection to the service: polls it, less and less often while it does not answer.
const POLL_MS = 1000;
const LONGEST_PAUSE_MS = 15000;
const ANSWER_MS = 10000;
const TOKEN = "ale-sandbox-token";

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const token = {
  get: () => sessionStorage.getItem(TOKEN),
  keep: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function ask(path) {
  const headers = token.get() === null ? {} : { Authorization: `Bearer ${token.get()}` };
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, error ? [error.message, error.remedy].filter(Boolean).join("; ") : "");
}

// Calls show(answer) or lost(error, pause) after every request; waits longer after each failure,
// and stops when lost() returns false.
class Follower {
  constructor(question, show, lost) {
    Object.assign(this, { question, show, lost, pause: POLL_MS, runs: false, wake: () => {} });
    document.addEventListener("visibilitychange", () => this.now());
  }

  now() {
    this.pause = POLL_MS;
    this.wake();
  }

  async run() {
    if (this.runs) return;
    this.runs = true;
    while (await this.step());
    this.runs = false;
  }

  async step() {
    let answer;
    try {
      answer = await ask(this.question());
    } catch (error) {
      if (!this.lost(error, this.pause)) return false;
      await this.sleep(this.pause);
      this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
      return true;
    }
    this.show(answer);
    this.pause = POLL_MS;
    do await this.sleep(this.pause);
    while (document.hidden); // a hidden tab does not poll
    return true;
  }

  sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
