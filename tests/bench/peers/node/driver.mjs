// Locks over Redis in Node.js, measured by `make bench ARGS=peers`. The protocol is in tests/bench/peers/README.md.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createClient } from "redis";

const LEASE_MS = 10_000;

function versionOf(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

// The least that a lock with a lease needs.
async function floorOf(client) {
  const key = "peers-node-floor";
  const sha = await client.scriptLoad(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end",
  );
  let n = 0;
  const token = () => n.toString(16).padStart(32, "0");
  return {
    name: "floor",
    version: versionOf("redis"),
    note: "node-redis: SET NX PX and EVALSHA",
    async acquire() {
      n += 1;
      const set = await client.sendCommand(["SET", key, token(), "NX", "PX", String(LEASE_MS)]);
      if (set !== "OK") throw new Error("somebody else has the key");
    },
    async release() {
      const deleted = await client.sendCommand(["EVALSHA", sha, "1", key, token()]);
      if (deleted !== 1) throw new Error("the key was not ours");
    },
  };
}

async function rwlockOf(client) {
  const { RwLock } = await import("redis-rwlock");
  const locks = new RwLock(client);
  const options = { leaseMs: LEASE_MS, waitMs: 60_000, fairness: "fifo", watchdog: true };
  return {
    name: "redis-rwlock",
    version: versionOf("redis-rwlock"),
    note: "a queue, in order; a waiter blocks in BLPOP; its write lock",
    acquire: () => locks.acquireWrite("peers-redis-rwlock", options),
    release: (held) => held.release(),
  };
}

// Nanoseconds.
async function cycles(peer, n) {
  const begun = process.hrtime.bigint();
  for (let i = 0; i < n; i++) await peer.release(await peer.acquire());
  return process.hrtime.bigint() - begun;
}

// Grants within the time, all grants, and those that went to another contender than the grant before.
async function contend(peer, contenders, milliseconds) {
  let [within, all, changed, last] = [0, 0, 0, -1];
  const until = performance.now() + milliseconds;
  const contender = async (me) => {
    for (;;) {
      const held = await peer.acquire();
      all += 1;
      if (last !== me) changed += 1;
      last = me;
      const now = performance.now();
      await peer.release(held);
      if (now >= until) return;
      within += 1;
    }
  };
  await Promise.all(Array.from({ length: contenders }, (_, me) => contender(me)));
  return `${within} ${all} ${changed}`;
}

async function main() {
  const url = process.argv[2];
  if (process.argv.length !== 3 || url.startsWith("-")) {
    console.error("usage: node driver.mjs redis://HOST:PORT");
    console.error("Drives Node's locks for `make bench ARGS=peers`: commands on stdin, replies on stdout.");
    process.exit(2);
  }
  const client = await createClient({ url }).connect();
  const peers = [await floorOf(client)];
  try {
    peers.push(await rwlockOf(client));
  } catch (error) {
    // Registries differ in what they have.
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    console.log("missing redis-rwlock npm did not get the package");
  }
  for (const { name, version, note } of peers) console.log(`peer ${name} ${version} ${note}`);
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, name, ...numbers] = line.split(" ");
    const peer = peers.find((peer) => peer.name === name);
    const run = { cycles, contend }[command];
    if (!peer || !run) throw new Error(`no such command: ${line}`);
    console.log(String(await run(peer, ...numbers.map(Number))));
  }
  process.exit(0);
}

await main();
