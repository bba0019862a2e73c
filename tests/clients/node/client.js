// A Node.js application on cassandra-driver, checked against a running node.
//
//     node client.js HOST [--protocol N] [--check NAME]
//
// Prints `ok NAME` or `FAILED NAME: why` for each check and ends with status 1 if one failed. `--check` runs only that check.
// It asks for what only the caller can do, and reads a line, which is `no` if the caller cannot: `restart?` when the node may
// be restarted (`done`), and `refusals?` for the numbers of reads and writes that the nodes have refused by rate limits.
"use strict";

const assert = require("assert");
const readline = require("readline");
const cassandra = require("cassandra-driver");
const requests = require("./requests.js");
const refusals = require("./refusals.js");

const { types } = cassandra;
const KEYSPACE = "node_client";
const RESTART_TAKES_MS = 60000;
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const prepared = { prepare: true };
/** Puts a question to the test that runs this program. */
async function ask(question) {
  console.log(question);
  return (await input.next()).value;
}
// The highest version of the protocol that is offered; undefined is the driver's own choice.
let maxVersion;

function connect(host, keyspace, options = {}) {
  return new cassandra.Client({
    contactPoints: [host],
    localDataCenter: "datacenter1",
    keyspace,
    socketOptions: { connectTimeout: 30000, readTimeout: 30000 },
    protocolOptions: { maxVersion },
    ...options,
    policies: { reconnection: new cassandra.policies.reconnection.ConstantReconnectionPolicy(200), ...options.policies },
  });
}

/** A value as text: the same text for the same value. */
function shown(value) {
  if (value === null || value === undefined) return String(value);
  if (Buffer.isBuffer(value)) return value.toString("hex");
  if (value instanceof Date) return value.toISOString();
  if (value instanceof types.Tuple) return `(${value.values().map(shown)})`;
  if (value instanceof types.Vector) return `<${Array.from(value).map(shown)}>`;
  if (Array.isArray(value)) return `[${value.map(shown)}]`;
  if (value instanceof Map) return `{${[...value].map(([k, v]) => `${shown(k)}: ${shown(v)}`)}}`;
  if (value instanceof Set) return `{${[...value].map(shown)}}`;
  if (typeof value === "object" && value.constructor === Object) return `{${Object.entries(value).map(([k, v]) => `${k}: ${shown(v)}`)}}`;
  return String(value);
}

class Application {
  constructor(host, client) {
    this.host = host;
    this.client = client;
    this.failed = 0;
    this.keyspace = KEYSPACE;
    this.third = maxVersion === 3;
    this.ask = ask;
    this.connect = (options) => connect(host, KEYSPACE, options);
  }

  async check(name) {
    try {
      await this[name]();
      console.log(`ok ${name}`);
    } catch (error) {
      console.log(`FAILED ${name}: ${String(error && error.message).replace(/\n/g, " ").slice(0, 600)}`);
      this.failed++;
    }
  }

  async column(text, values, options) {
    const seen = [];
    for await (const row of this.client.stream(text, values, { ...prepared, autoPage: true, ...options })) seen.push(row.get(0));
    return seen;
  }

  /** Every type through prepared statements, and read again without: extremes, empty collections, nesting. */
  async types() {
    const uuid = types.Uuid.fromString("d2177dd0-eaa2-41de-a572-001b779c76e3");
    const huge = types.Integer.fromString("-123456789012345678901234567890123456789");
    const point = (x, y) => ({ x, y });
    const cases = [
      ["ascii", "", "plain ~"],
      ["text", "", "häßlich 漢字 🦀", "long ".repeat(20000)],
      ["blob", Buffer.alloc(0), Buffer.from([0, 1, 255])],
      ["boolean", true, false],
      ["tinyint", -128, 127],
      ["smallint", -32768, 32767],
      ["int", -(2 ** 31), -1, 2 ** 31 - 1],
      ["bigint", types.Long.MIN_VALUE, types.Long.MAX_VALUE],
      ["varint", types.Integer.ZERO, types.Integer.fromInt(-129), huge],
      ["decimal", types.BigDecimal.fromString("-12345.678900"), types.BigDecimal.fromString("0")],
      ["float", 1.5, Infinity],
      ["double", Number.MAX_VALUE, 1e-300, -Infinity],
      ["timestamp", new Date(1700000000123), new Date(-1)],
      ["date", types.LocalDate.fromString("2024-02-29"), types.LocalDate.fromString("1601-01-01")],
      ["time", types.LocalTime.fromString("00:00:00"), types.LocalTime.fromString("23:59:59.999999999")],
      ["duration", types.Duration.fromString("1mo2d3ns"), types.Duration.fromString("-14mo1d5s")],
      ["uuid", uuid],
      ["timeuuid", types.TimeUuid.fromString("d2177dd0-eaa2-11de-a572-001b779c76e3")],
      ["inet", types.InetAddress.fromString("255.1.2.3"), types.InetAddress.fromString("2001:db8::8a2e:370:7334")],
      ["list<int>", [3, 1, 3]],
      ["set<text>", ["a", "b"]],
      ["map<text, text>", { a: "one", b: "two" }],
      ["frozen<list<text>>", [], ["a", ""]],
      ["frozen<map<text, frozen<set<int>>>>", { k: [1, 2] }],
      ["map<text, frozen<list<frozen<set<int>>>>>", { k: [[1, 2], [3]] }],
      ["tuple<int, text, frozen<list<int>>>", new types.Tuple(5, "five", [1, 2])],
      ["vector<float, 3>", new types.Vector([1, -2.5, 0], "float")],
      ["point", point(1, "y")],
      ["frozen<point>", point(-5, null)],
      ["list<frozen<point>>", [point(1, "one"), point(2, "two")]],
    ];
    await this.client.execute("CREATE TYPE point (x int, y text)");
    const wrong = [];
    for (const [number, [type, ...values]] of cases.entries()) {
      const table = `type_${number}`;
      await this.client.execute(`CREATE TABLE ${table} (pk int PRIMARY KEY, v ${type})`);
      for (const [pk, value] of values.entries()) {
        await this.client.execute(`INSERT INTO ${table} (pk, v) VALUES (?, ?)`, [pk, value], prepared);
        for (const options of [prepared, {}]) {
          const values = options.prepare ? [pk] : undefined;
          const text = `SELECT v FROM ${table} WHERE pk = ${options.prepare ? "?" : pk}`;
          const seen = (await this.client.execute(text, values, options)).first().v;
          // This driver sends an empty collection as null.
          const expected = Array.isArray(value) && value.length === 0 ? null : value;
          if (shown(seen) !== shown(expected)) wrong.push(`${type}: sent ${shown(value).slice(0, 80)}, got ${shown(seen).slice(0, 80)}`);
        }
      }
      const none = await this.client.execute(`SELECT v FROM ${table} WHERE pk = ?`, [-1], prepared);
      assert.strictEqual(none.rowLength, 0, `${type}: a key that was never written`);
    }
    assert.deepStrictEqual(wrong, []);
  }

  async paging() {
    const rows = 250;
    const all = [...Array(rows).keys()];
    await this.client.execute("CREATE TABLE paged (pk int, ck int, v text, PRIMARY KEY (pk, ck))");
    for (const ck of all) await this.client.execute("INSERT INTO paged (pk, ck, v) VALUES (?, ?, ?)", [7, ck, `value ${ck}`], prepared);
    const select = "SELECT ck FROM paged WHERE pk = ?";
    for (const fetchSize of [1, 7, 100, rows, rows + 1]) assert.deepStrictEqual(await this.column(select, [7], { fetchSize }), all);
    // A page at a time, every other one by another client that knows nothing but the state.
    const other = connect(this.host, KEYSPACE);
    try {
      const seen = [];
      let pageState;
      for (let page = 0; page === 0 || pageState; page++) {
        const client = page % 2 ? other : this.client;
        const result = await client.execute(select, [7], { ...prepared, fetchSize: 60, pageState });
        assert(result.rows.length <= 60, `a page of ${result.rows.length}`);
        seen.push(...result.rows.map((row) => row.ck));
        pageState = result.pageState;
      }
      assert.deepStrictEqual(seen, all);
    } finally {
      await other.shutdown();
    }
    const newest = await this.column("SELECT ck FROM paged WHERE pk = 7 ORDER BY ck DESC LIMIT 25", [], { fetchSize: 10 });
    assert.deepStrictEqual(newest, all.slice(-25).reverse());
  }

  async batches() {
    await this.client.execute("CREATE TABLE batched (pk int, ck int, v int, PRIMARY KEY (pk, ck))");
    const insert = "INSERT INTO batched (pk, ck, v) VALUES (?, ?, ?)";
    let pk = 0;
    for (const logged of [true, false]) {
      for (const prepare of [true, false]) {
        pk++;
        await this.client.execute(insert, [pk, 9, 9], prepared);
        const queries = [
          { query: insert, params: [pk, 1, 11] },
          { query: insert, params: [pk, 2, 22] },
          { query: `INSERT INTO batched (pk, ck, v) VALUES (${pk}, 3, 33)`, params: [] },
          { query: "DELETE FROM batched WHERE pk = ? AND ck = ?", params: [pk, 9] },
        ];
        // Numbers in text batches go out as doubles unless their types are given.
        const hints = [["int", "int", "int"], ["int", "int", "int"], [], ["int", "int"]];
        await this.client.batch(queries, { prepare, logged, hints: prepare ? undefined : hints });
        assert.deepStrictEqual(await this.column("SELECT v FROM batched WHERE pk = ?", [pk]), [11, 22, 33]);
      }
    }
  }

  async null_and_unset() {
    await this.client.execute("CREATE TABLE holes (pk int PRIMARY KEY, a int, b text)");
    const insert = "INSERT INTO holes (pk, a, b) VALUES (?, ?, ?)";
    const steps = [[5, "five", [5, "five"]], [types.unset, "six", [5, "six"]], [null, types.unset, [null, "six"]], [types.unset, "", [null, ""]]];
    // Version 3 of the protocol knows nothing unset.
    for (const [a, b, expected] of steps.filter((step) => !(this.third && step.includes(types.unset)))) {
      await this.client.execute(insert, [1, a, b], prepared);
      const row = (await this.client.execute("SELECT a, b FROM holes WHERE pk = 1")).first();
      assert.deepStrictEqual([row.a, row.b], expected);
    }
  }

  /** Prepared statements before and after their table changes. */
  async schema_change() {
    await this.client.execute("CREATE TABLE changing (pk int PRIMARY KEY, v int)");
    await this.client.execute("INSERT INTO changing (pk, v) VALUES (1, 10)");
    const all = async () => (await this.client.execute("SELECT * FROM changing WHERE pk = ?", [1], prepared)).first();
    const plain = (row) => Object.fromEntries(row.keys().map((key) => [key, row[key]]));
    assert.deepStrictEqual(plain(await all()), { pk: 1, v: 10 });
    await this.client.execute("ALTER TABLE changing ADD w text");
    await this.client.execute("UPDATE changing SET w = 'new' WHERE pk = 1");
    assert.deepStrictEqual(plain(await all()), { pk: 1, v: 10, w: "new" });
    await this.client.execute("ALTER TABLE changing DROP v");
    assert.deepStrictEqual(plain(await all()), { pk: 1, w: "new" });
    await this.client.execute("DROP TABLE changing");
    await this.client.execute("CREATE TABLE changing (pk int PRIMARY KEY, other text)");
    assert.strictEqual(await all(), null);
  }

  async metadata() {
    await this.client.execute(
      "CREATE TABLE described (a int, b text, c timeuuid, m map<text, frozen<list<int>>>, s set<int> static, PRIMARY KEY ((a, b), c)) " +
        "WITH CLUSTERING ORDER BY (c DESC) AND comment = 'described' AND gc_grace_seconds = 77",
    );
    const table = await this.client.metadata.getTable(KEYSPACE, "described");
    assert.deepStrictEqual(table.partitionKeys.map((column) => column.name), ["a", "b"]);
    assert.deepStrictEqual(table.clusteringKeys.map((column) => column.name), ["c"]);
    assert.deepStrictEqual(table.clusteringOrder, ["DESC"]);
    assert.deepStrictEqual([table.comment, table.gcGraceSeconds], ["described", 77]);
    assert.strictEqual(table.columnsByName.s.isStatic, true);
    const local = await this.client.metadata.getTable("system", "local");
    assert(local.columns.length > 10);
    assert(this.client.metadata.keyspaces[KEYSPACE].durableWrites);
    assert(this.client.hosts.values()[0].cassandraVersion);
    const trace = await this.client.execute("SELECT * FROM described", [], { traceQuery: true });
    const { events } = await this.client.metadata.getTrace(trace.info.traceId);
    assert(events.length > 0, "a trace without events");
  }

  async errors() {
    const codes = cassandra.types.responseErrorCodes;
    for (const [text, code] of [
      ["SELEC * FROM paged", codes.syntaxError],
      ["SELECT nothing FROM paged", codes.invalid],
      ["SELECT * FROM no_such_table", codes.invalid],
      ["CREATE TABLE paged (pk int PRIMARY KEY)", codes.alreadyExists],
      ["CREATE KEYSPACE no_class WITH replication = {'class': 'NoSuchStrategy'}", codes.configError],
      ["SELECT * FROM paged WHERE v = 'x'", codes.invalid],
    ]) {
      await assert.rejects(this.client.execute(text), (error) => error.code === code, text);
    }
  }

  async concurrency() {
    const rows = 500;
    await this.client.execute("CREATE TABLE busy (pk int PRIMARY KEY, v int)");
    const values = [...Array(rows).keys()].map((pk) => [pk, pk * 3]);
    const done = await cassandra.concurrent.executeConcurrent(this.client, "INSERT INTO busy (pk, v) VALUES (?, ?)", values);
    assert.strictEqual(done.totalExecuted, rows);
    const select = "SELECT v FROM busy WHERE pk = ?";
    const read = await Promise.all(values.map(([pk]) => this.client.execute(select, [pk], prepared)));
    assert.deepStrictEqual(read.map((result) => result.first().v), values.map(([, v]) => v));
    assert.strictEqual((await this.client.execute("SELECT count(*) FROM busy")).first().get(0).toNumber(), rows);
  }

  async counters() {
    await this.client.execute("CREATE TABLE counted (pk int PRIMARY KEY, n counter)");
    const add = "UPDATE counted SET n = n + ? WHERE pk = ?";
    for (let i = 1; i <= 10; i++) await this.client.execute(add, [i, 1], prepared);
    await this.client.batch([{ query: add, params: [-5, 1] }, { query: add, params: [7, 2] }], { prepare: true, counter: true });
    const seen = await this.column("SELECT n FROM counted WHERE pk IN (1, 2)", []);
    assert.deepStrictEqual(seen.map(Number), [50, 7]);
  }

  /** What an application sees when its only node goes away for a moment. */
  async restart() {
    await this.client.execute("CREATE TABLE kept (pk int PRIMARY KEY, v int)");
    const insert = "INSERT INTO kept (pk, v) VALUES (?, ?)";
    const select = "SELECT v FROM kept WHERE pk = ?";
    for (let pk = 0; pk < 50; pk++) await this.client.execute(insert, [pk, pk * 7], prepared);
    assert.strictEqual((await this.client.execute(select, [1], prepared)).first().v, 7);
    if ((await ask("restart?")) !== "done") {
      console.log("not run: restart (the node is not ours)");
      return;
    }
    for (const end = Date.now() + RESTART_TAKES_MS; ; await pause(100)) {
      try {
        await this.client.execute(select, [0], prepared);
        break;
      } catch (error) {
        if (Date.now() > end) throw error;
      }
    }
    for (let pk = 0; pk < 50; pk++) {
      assert.strictEqual((await this.client.execute(select, [pk], prepared)).first().v, pk * 7);
    }
    await this.client.execute(insert, [100, 1], prepared);
    await this.client.execute("ALTER TABLE kept ADD more int");
    assert.strictEqual((await this.client.execute("SELECT count(*) FROM kept")).first().get(0).toNumber(), 51);
  }
}

const further = { ...requests, ...refusals };
for (const [name, check] of Object.entries(further)) {
  Application.prototype[name] = function run() {
    return check(this);
  };
}

const CHECKS = ["types", "paging", "batches", "null_and_unset", "schema_change", "metadata", "errors", "concurrency", "counters", ...Object.keys(further), "restart"];

async function main() {
  const [host, ...options] = process.argv.slice(2);
  const given = {};
  for (let i = 0; i < options.length; i += 2) given[options[i]] = options[i + 1];
  if (!host || Object.keys(given).some((option) => option !== "--protocol" && option !== "--check")) {
    console.error("usage: node client.js HOST [--protocol N] [--check NAME]");
    return 2;
  }
  maxVersion = given["--protocol"] && Number(given["--protocol"]);
  const checks = given["--check"] ? [given["--check"]] : CHECKS;
  const first = connect(host);
  await first.execute(`DROP KEYSPACE IF EXISTS ${KEYSPACE}`);
  await first.execute(`CREATE KEYSPACE ${KEYSPACE} WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}`);
  await first.shutdown();
  const client = connect(host, KEYSPACE);
  await client.connect();
  const application = new Application(host, client);
  for (const name of checks) await application.check(name);
  await client.shutdown();
  return application.failed ? 1 : 0;
}

main().then(
  (code) => process.exit(code),
  (error) => {
    console.log(`FAILED connect: ${error && error.stack}`);
    process.exit(1);
  },
);
